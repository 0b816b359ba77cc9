// The operations of networks on a GPU. Convolutions and dense layers compute on copies of their
// kernels in the dtype of the network, made once per step: convolutions in the order of cuDNN. The
// gradient of a kernel is computed into scratch memory and then added to the parameter's gradient,
// in the parameter's order. A convolution whose padding differs between opposite sides reads a copy
// of its input with the padding, because cuDNN pads opposite sides alike.

#include <dtrun/error.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/gpu/cuda_network.h"
#include "models/gpu/layer_args.h"
#include "models/gpu/product.h"

namespace dtrun::models {
namespace {

uint32_t Pixels(const Shape& shape, int examples) {
  return static_cast<uint32_t>(shape.pixels() * size_t(examples));
}
uint32_t Channels(const Shape& shape) { return static_cast<uint32_t>(shape.channels); }

// What all operations know.
class PlannedOperation : public CudaOperation {
 public:
  PlannedOperation(
      CudaPlan& plan, const Operation& operation, const std::vector<CudaValue>& inputs,
      const CudaValue& output)
      : plan_(plan), operation_(operation), input_(inputs[0]), output_(output) {}

 protected:
  uint32_t input_count() const {
    return static_cast<uint32_t>(plan_.rows() * input_.shape.count());
  }
  uint32_t output_count() const {
    return static_cast<uint32_t>(plan_.rows() * output_.shape.count());
  }
  std::string Typed(const std::string& name) const { return CudaPlan::Typed(name, plan_.dtype()); }

  // The output of a fused ReLU has no separate gradient: the gradient of the ReLU's input replaces
  // that of its output.
  void MaskByRelu() const {
    if (!operation_.relu) return;
    plan_.Enqueue(
        Typed("relu_gradient"), output_count(),
        LayerReluGradientArgs{output_.data, output_.gradient, output_.gradient, output_count()});
  }

  void AddBias(size_t parameter) const {
    const uint32_t pixels = Pixels(output_.shape, static_cast<int>(plan_.rows()));
    plan_.Enqueue(
        CudaPlan::Typed("bias", output_.dtype), output_count(),
        LayerBiasArgs{
            output_.data, plan_.value(parameter), output_.data, pixels, Channels(output_.shape),
            operation_.relu ? 1u : 0u});
  }

  void BiasGradient(const Pass& pass, size_t parameter) const {
    const uint32_t pixels = Pixels(output_.shape, static_cast<int>(plan_.rows()));
    const uint32_t channels = Channels(output_.shape);
    plan_.EnqueueShaped(
        Typed("column_sums"), {CudaPlan::SumBlocks(pixels), 256, ChannelTiles(channels)},
        LayerColumnSumsArgs{
            output_.gradient, plan_.gradient(parameter), plan_.partials(), plan_.counters(), pixels,
            channels, pass.first ? 0u : 1u});
  }

  CudaPlan& plan_;
  Operation operation_;
  CudaValue input_, output_;
};

class CudaConvolution : public PlannedOperation {
 public:
  CudaConvolution(
      CudaPlan& plan, const Operation& operation, const std::vector<CudaValue>& inputs,
      const CudaValue& output, bool input_gradient)
      : PlannedOperation(plan, operation, inputs, output),
        taps_(static_cast<uint32_t>(operation.window.size * operation.window.size)),
        filters_(plan.NewMemory(FilterCount() * plan.value_size())),
        filters_gradient_(plan.NewMemory(FilterCount() * plan.value_size())),
        options_(OptionsOf(input_gradient)),
        padded_(
            options_.input == input_.shape
                ? nullptr
                : plan.NewMemory(plan.rows() * options_.input.count() * plan.value_size())),
        convolution_(
            plan.stream(), options_, plan.workspace(), padded_ == nullptr ? input_.data : padded_,
            filters_, output.data) {}

  void PrepareWeights() override {
    plan_.Enqueue(
        Typed("pack_filters"), FilterCount(),
        LayerPackFiltersArgs{
            plan_.value(kernel()), filters_, taps_, Channels(input_.shape),
            Channels(output_.shape)});
  }

  void Forward(const Pass&) override {
    if (padded_ != nullptr) Shift(input_.data, input_.shape, padded_, options_.input, -1);
    convolution_.Forward(ConvolutionInput(), filters_, output_.data);
    if (has_bias()) {
      AddBias(operation_.parameters[1]);
    } else if (operation_.relu) {
      plan_.Enqueue(
          Typed("add"), output_count(),
          LayerAddArgs{output_.data, nullptr, output_.data, output_count(), 1});
    }
  }

  void BackwardWeights(const Pass& pass) override {
    MaskByRelu();
    convolution_.BackwardFilters(ConvolutionInput(), output_.gradient, filters_gradient_);
    plan_.Enqueue(
        Typed("unpack_filters"), FilterCount(),
        LayerUnpackFiltersArgs{
            filters_gradient_, plan_.gradient(kernel()), taps_, Channels(input_.shape),
            Channels(output_.shape), pass.first ? 0u : 1u});
    if (has_bias()) BiasGradient(pass, operation_.parameters[1]);
  }

  // The padded input is not needed any more, so that its gradient takes its place.
  void BackwardInput(const Pass&, size_t, void* to) override {
    convolution_.BackwardInput(output_.gradient, filters_, padded_ == nullptr ? to : padded_);
    if (padded_ != nullptr) Shift(padded_, options_.input, to, input_.shape, 1);
  }

 private:
  WindowExtent Rows() const { return ExtentOf(operation_.window, input_.shape.height); }
  WindowExtent Columns() const { return ExtentOf(operation_.window, input_.shape.width); }
  const void* ConvolutionInput() const { return padded_ == nullptr ? input_.data : padded_; }

  // Between the input and the padded input: adds the padding if `sign` is -1, drops it if 1.
  void Shift(const void* from, const Shape& from_shape, void* to, const Shape& to_shape, int sign) {
    const auto count = static_cast<uint32_t>(plan_.rows() * to_shape.count());
    plan_.Enqueue(
        Typed("shift"), count,
        LayerShiftArgs{
            .from = from,
            .to = to,
            .rows = static_cast<uint32_t>(plan_.rows()),
            .channels = Channels(to_shape),
            .from_height = static_cast<uint32_t>(from_shape.height),
            .from_width = static_cast<uint32_t>(from_shape.width),
            .to_height = static_cast<uint32_t>(to_shape.height),
            .to_width = static_cast<uint32_t>(to_shape.width),
            .down = sign * Rows().before,
            .right = sign * Columns().before});
  }

  size_t kernel() const { return operation_.parameters[0]; }
  bool has_bias() const { return operation_.parameters.size() > 1; }
  uint64_t FilterCount() const {
    return uint64_t{taps_} * Channels(input_.shape) * Channels(output_.shape);
  }
  Convolution::Options OptionsOf(bool input_gradient) const {
    const WindowExtent rows = Rows(), columns = Columns();
    Convolution::Options options;
    options.input = input_.shape;
    if (rows.before == rows.after && columns.before == columns.after) {
      options.padding = {rows.before, columns.before};
    } else {
      options.input.height += rows.before + rows.after;
      options.input.width += columns.before + columns.after;
    }
    options.output = output_.shape;
    options.size = operation_.window.size;
    options.stride = operation_.window.stride;
    options.rows = static_cast<int>(plan_.rows());
    options.input_gradient = input_gradient;
    options.dtype = plan_.dtype();
    options.tf32 = plan_.tf32();
    options.selection = plan_.selection();
    return options;
  }

  uint32_t taps_;
  void *filters_, *filters_gradient_;  // (filters, taps, input channels)
  Convolution::Options options_;
  void* padded_;  // the input with its padding, or null
  Convolution convolution_;
};

class CudaDense : public PlannedOperation {
 public:
  CudaDense(
      CudaPlan& plan, const Operation& operation, const std::vector<CudaValue>& inputs,
      const CudaValue& output, void* input_gradient)
      : PlannedOperation(plan, operation, inputs, output),
        inputs_(static_cast<uint32_t>(input_.shape.count())),
        units_(Channels(output.shape)),
        kernel_(plan.NewMemory(KernelCount() * plan.value_size())),
        kernel_gradient_(plan.New<float>(KernelCount())) {
    const uint64_t rows = plan.rows();
    const DType dtype = plan.dtype();
    const Matrix x{input_.data, rows, inputs_, dtype}, kernel{kernel_, inputs_, units_, dtype};
    const Matrix dy{output.gradient, rows, units_, dtype};
    forward_ = Make(x, kernel, {output.data, rows, units_, output.dtype});
    to_kernel_ = Make(Transposed(x), dy, {kernel_gradient_, inputs_, units_, DType::kF32});
    if (input_gradient != nullptr)
      to_input_ = Make(dy, Transposed(kernel), {input_gradient, rows, inputs_, dtype});
  }

  void PrepareWeights() override {
    plan_.Enqueue(
        Typed("narrow"), KernelCount(),
        LayerNarrowArgs{plan_.value(operation_.parameters[0]), kernel_, inputs_ * units_});
  }

  void Forward(const Pass&) override {
    forward_->Enqueue();
    AddBias(operation_.parameters[1]);
  }

  void BackwardWeights(const Pass& pass) override {
    MaskByRelu();
    to_kernel_->Enqueue();
    plan_.Enqueue(
        "widen_f32", KernelCount(),
        LayerWidenArgs{
            kernel_gradient_, plan_.gradient(operation_.parameters[0]), inputs_ * units_,
            pass.first ? 0u : 1u});
    BiasGradient(pass, operation_.parameters[1]);
  }

  void BackwardInput(const Pass&, size_t, void*) override { to_input_->Enqueue(); }

 private:
  uint64_t KernelCount() const { return uint64_t{inputs_} * units_; }
  static Matrix Transposed(Matrix matrix) {
    matrix.transposed = true;
    return matrix;
  }
  std::unique_ptr<Product> Make(const Matrix& a, const Matrix& b, const Matrix& c) const {
    Product::Options options;
    options.a = a;
    options.b = b;
    options.c = c;
    options.tf32 = plan_.tf32();
    options.selection = plan_.selection();
    return std::make_unique<Product>(plan_.stream(), options, plan_.workspace());
  }

  uint32_t inputs_, units_;
  void* kernel_;            // (inputs, units)
  float* kernel_gradient_;  // (inputs, units)
  std::unique_ptr<Product> forward_, to_kernel_, to_input_;
};

class CudaPool : public PlannedOperation {
 public:
  CudaPool(
      CudaPlan& plan, const Operation& operation, const std::vector<CudaValue>& inputs,
      const CudaValue& output)
      : PlannedOperation(plan, operation, inputs, output),
        is_max_(operation.kind == OperationKind::kMaxPool),
        winners_(is_max_ ? plan.New<uint16_t>(output_count()) : nullptr) {
    const WindowExtent rows = ExtentOf(operation.window, input_.shape.height);
    const WindowExtent columns = ExtentOf(operation.window, input_.shape.width);
    windows_.rows = plan.rows();
    windows_.height = static_cast<uint32_t>(input_.shape.height);
    windows_.width = static_cast<uint32_t>(input_.shape.width);
    windows_.channels = Channels(input_.shape);
    windows_.output_height = static_cast<uint32_t>(output.shape.height);
    windows_.output_width = static_cast<uint32_t>(output.shape.width);
    windows_.size = static_cast<uint32_t>(operation.window.size);
    windows_.stride = static_cast<uint32_t>(operation.window.stride);
    windows_.rows_before = static_cast<uint32_t>(rows.before);
    windows_.columns_before = static_cast<uint32_t>(columns.before);
  }

  void Forward(const Pass&) override {
    plan_.Enqueue(
        Typed(is_max_ ? "max_pool" : "average_pool"), output_count(),
        LayerPoolArgs{input_.data, output_.data, winners_, windows_});
  }

  void BackwardInput(const Pass&, size_t, void* to) override {
    plan_.Enqueue(
        Typed(is_max_ ? "max_pool_gradient" : "average_pool_gradient"), input_count(),
        LayerPoolGradientArgs{output_.gradient, winners_, to, windows_});
  }

 private:
  bool is_max_;
  uint16_t* winners_;
  LayerWindows windows_;
};

class CudaGlobalAverage : public PlannedOperation {
 public:
  using PlannedOperation::PlannedOperation;

  void Forward(const Pass&) override {
    plan_.Enqueue(
        Typed("global_average"), output_count(),
        LayerGlobalAverageArgs{
            input_.data, output_.data, plan_.rows(), Pixels(input_.shape, 1),
            Channels(input_.shape)});
  }

  void BackwardInput(const Pass&, size_t, void* to) override {
    plan_.Enqueue(
        Typed("global_average_gradient"), input_count(),
        LayerGlobalAverageArgs{
            output_.gradient, to, plan_.rows(), Pixels(input_.shape, 1), Channels(input_.shape)});
  }
};

// If the normalisation is synchronised, the sums go through the host, where the ranks add them.
class CudaBatchNorm : public PlannedOperation {
 public:
  CudaBatchNorm(
      CudaPlan& plan, const Operation& operation, const std::vector<CudaValue>& inputs,
      const CudaValue& output)
      : PlannedOperation(plan, operation, inputs, output),
        channels_(Channels(output.shape)),
        sums_(plan.New<double>(2 * channels_ + 1)),
        factors_(plan.New<float>(3 * channels_)),
        normalization_{
            plan.New<float>(channels_), plan.New<double>(channels_), plan.New<float>(channels_),
            plan.New<float>(channels_)} {
    if (operation.normalization.synchronized && plan.network().communicator == nullptr) {
      throw Error(
          ErrorCode::kInvalidArgument, "needs SequentialOptions::communicator to synchronise over");
    }
  }

  void Forward(const Pass& pass) override {
    const uint32_t pixels = Pixels(input_.shape, pass.examples);
    if (pass.training) {
      plan_.EnqueueShaped(
          Typed("channel_sums"), SumShape(pixels),
          LayerChannelSumsArgs{
              input_.data, sums_, plan_.partials(), plan_.counters(), pixels, channels_});
      AddUpRanks();
    }
    plan_.Enqueue(
        "batch_norm_statistics", channels_,
        LayerStatisticsArgs{
            pass.training ? sums_ : nullptr, gamma(), plan_.value(operation_.parameters[1]),
            plan_.buffer(operation_.buffers[0]), plan_.buffer(operation_.buffers[1]),
            normalization_, channels_, operation_.normalization.momentum,
            operation_.normalization.epsilon});
    plan_.Enqueue(
        Typed("batch_norm"), output_count(),
        LayerBatchNormArgs{
            input_.data, output_.data, normalization_.scale, normalization_.offset, pixels,
            channels_, relu()});
  }

  void BackwardWeights(const Pass& pass) override {
    const uint32_t pixels = Pixels(input_.shape, pass.examples);
    plan_.EnqueueShaped(
        Typed("batch_norm_gradient_sums"), SumShape(pixels),
        LayerGradientSumsArgs{
            input_.data, output_.gradient, normalization_, sums_, plan_.partials(),
            plan_.counters(), pixels, channels_, relu()});
    plan_.Enqueue(
        "batch_norm_parameter_gradients", channels_,
        LayerNormGradientsArgs{
            sums_, normalization_.reciprocal, plan_.gradient(operation_.parameters[0]),
            plan_.gradient(operation_.parameters[1]), channels_, pass.first ? 0u : 1u});
  }

  void BackwardInput(const Pass& pass, size_t, void* to) override {
    AddUpRanks();
    plan_.Enqueue(
        "batch_norm_factors", channels_,
        LayerNormFactorsArgs{sums_, gamma(), normalization_, factors_, channels_});
    plan_.Enqueue(
        Typed("batch_norm_gradient"), input_count(),
        LayerBatchNormGradientArgs{
            input_.data, output_.gradient, to, factors_, normalization_.scale,
            normalization_.offset, Pixels(input_.shape, pass.examples),
            Pixels(input_.shape, static_cast<int>(plan_.rows())), channels_, relu()});
  }

 private:
  const float* gamma() const { return plan_.value(operation_.parameters[0]); }
  uint32_t relu() const { return operation_.relu ? 1 : 0; }
  gpu::Shape SumShape(uint32_t pixels) const {
    return {std::max(CudaPlan::SumBlocks(pixels), 1u), 256, ChannelTiles(channels_)};
  }

  void AddUpRanks() {
    if (!operation_.normalization.synchronized) return;
    const gpu::Stream& stream = plan_.stream();
    host_sums_.resize(2 * channels_ + 1);
    const uint64_t bytes = host_sums_.size() * sizeof(double);
    const gpu::DeviceScope scope(stream.device());
    gpu::CopyToHost(host_sums_.data(), gpu::AddressOf(sums_), bytes, stream.get());
    stream.Synchronize();
    plan_.network().communicator->AllReduce(Buffer(host_sums_.data(), host_sums_.size()));
    gpu::CopyToDevice(gpu::AddressOf(sums_), host_sums_.data(), bytes, stream.get());
  }

  uint32_t channels_;
  double* sums_;    // (2 * channels + 1)
  float* factors_;  // (3, channels)
  LayerNormalization normalization_;
  std::vector<double> host_sums_;
};

class CudaRelu : public PlannedOperation {
 public:
  using PlannedOperation::PlannedOperation;

  void Forward(const Pass&) override {
    plan_.Enqueue(
        Typed("add"), output_count(),
        LayerAddArgs{input_.data, nullptr, output_.data, output_count(), 1});
  }

  void BackwardInput(const Pass&, size_t, void* to) override {
    plan_.Enqueue(
        Typed("relu_gradient"), output_count(),
        LayerReluGradientArgs{output_.data, output_.gradient, to, output_count()});
  }
};

class CudaDropout : public PlannedOperation {
 public:
  CudaDropout(
      CudaPlan& plan, const Operation& operation, const std::vector<CudaValue>& inputs,
      const CudaValue& output)
      : PlannedOperation(plan, operation, inputs, output),
        keep_(plan.New<uint8_t>(output_count())) {}

  void Forward(const Pass& pass) override {
    LayerDropoutArgs args{};
    args.inputs = input_.data;
    args.outputs = output_.data;
    args.keep = pass.training ? keep_ : nullptr;
    args.step = pass.step;
    args.first_position = pass.first_example;
    args.rows = plan_.rows();
    args.width = static_cast<uint32_t>(output_.shape.count());
    if (pass.training) {
      const DropoutDraws& draws = operation_.draws;
      args.rule = {draws.keep_below, draws.scale, draws.key[0], draws.key[1], draws.domain};
    }
    plan_.Enqueue(Typed("dropout"), output_count(), args);
  }

  void BackwardInput(const Pass&, size_t, void* to) override {
    plan_.Enqueue(
        Typed("dropout_gradient"), output_count(),
        LayerDropoutGradientArgs{
            output_.gradient, keep_, to, output_count(), operation_.draws.scale});
  }

 private:
  uint8_t* keep_;
};

class CudaSoftmax : public PlannedOperation {
 public:
  using PlannedOperation::PlannedOperation;

  void Forward(const Pass&) override {
    plan_.Enqueue(
        Typed("softmax"), pixels(),
        LayerSoftmaxArgs{input_.data, output_.data, pixels(), Channels(output_.shape)});
  }

  void BackwardInput(const Pass&, size_t, void* to) override {
    plan_.Enqueue(
        Typed("softmax_gradient"), pixels(),
        LayerSoftmaxGradientArgs{
            input_.data, output_.gradient, to, pixels(), Channels(output_.shape)});
  }

 private:
  uint32_t pixels() const { return Pixels(output_.shape, static_cast<int>(plan_.rows())); }
};

class CudaAdd : public PlannedOperation {
 public:
  CudaAdd(
      CudaPlan& plan, const Operation& operation, const std::vector<CudaValue>& inputs,
      const CudaValue& output)
      : PlannedOperation(plan, operation, inputs, output), other_(inputs[1]) {}

  void Forward(const Pass&) override {
    plan_.Enqueue(
        Typed("add"), output_count(),
        LayerAddArgs{
            input_.data, other_.data, output_.data, output_count(), operation_.relu ? 1u : 0u});
  }

  // Not the gradients of weights, but the first call of the backward pass.
  void BackwardWeights(const Pass&) override { MaskByRelu(); }

  void BackwardInput(const Pass&, size_t, void* to) override {
    const gpu::DeviceScope scope(plan_.stream().device());
    gpu::CopyOnDevice(
        gpu::AddressOf(to), gpu::AddressOf(output_.gradient), output_count() * plan_.value_size(),
        plan_.stream().get());
  }

 private:
  CudaValue other_;
};

}  // namespace

std::unique_ptr<CudaOperation> PlanOperation(
    CudaPlan& plan, const Operation& operation, const std::vector<CudaValue>& inputs,
    const CudaValue& output, const std::vector<void*>& gradients) {
  switch (operation.kind) {
    case OperationKind::kConvolution:
      return std::make_unique<CudaConvolution>(
          plan, operation, inputs, output, gradients[0] != nullptr);
    case OperationKind::kDense:
      return std::make_unique<CudaDense>(plan, operation, inputs, output, gradients[0]);
    case OperationKind::kMaxPool:
    case OperationKind::kAveragePool:
      return std::make_unique<CudaPool>(plan, operation, inputs, output);
    case OperationKind::kGlobalAveragePool:
      return std::make_unique<CudaGlobalAverage>(plan, operation, inputs, output);
    case OperationKind::kBatchNorm:
      return std::make_unique<CudaBatchNorm>(plan, operation, inputs, output);
    case OperationKind::kRelu: return std::make_unique<CudaRelu>(plan, operation, inputs, output);
    case OperationKind::kDropout:
      return std::make_unique<CudaDropout>(plan, operation, inputs, output);
    case OperationKind::kSoftmax:
      return std::make_unique<CudaSoftmax>(plan, operation, inputs, output);
    case OperationKind::kAdd: return std::make_unique<CudaAdd>(plan, operation, inputs, output);
    case OperationKind::kReshape: break;  // a view
  }
  return nullptr;
}

}  // namespace dtrun::models
