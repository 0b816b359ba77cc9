#include "models/layers/pooling.h"

#include <dtrun/error.h>

#include <algorithm>
#include <dnnl.hpp>

#include "models/layers/builder.h"
#include "models/layers/convolution_plan.h"
#include "models/layers/cpu_kernels.h"
#include "models/layers/layer_plumbing.h"
#include "models/layers/network_graph.h"
#include "models/layers/settings.h"
#include "models/message_text.h"
#include "models/onednn/onednn.h"

namespace dtrun::models {

MaxPool2D::MaxPool2D(int window) : window_(window) {}

MaxPool2D::MaxPool2D(const Window& window) : window_(window.size) {
  if (window.stride == window.size && window.padding.is_valid()) return;
  general_ = std::make_unique<WindowPool2D>(WindowPool2D::Operation::kMax, window);
}

std::string MaxPool2D::description() const {
  return general_ ? general_->description() : Text("max_pool2d ", window_, "x", window_);
}

LayerSettings MaxPool2D::settings() const {
  if (general_) return general_->settings();
  LayerSettings settings;
  SetWindow("pool_size", {window_, window_}, settings);
  return settings;
}

Shape MaxPool2D::OutputShape(const Shape& input) const {
  if (general_) return general_->OutputShape(input);
  // A winner is a byte, and 255 is kPoolNone.
  if (window_ < 1 || window_ > 15)
    throw Error(ErrorCode::kInvalidArgument, Text("needs a window from 1 to 15, got ", window_));
  if (input.height < window_ || input.width < window_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("needs an input of at least ", window_, "x", window_, ", got ", ToString(input)));
  }
  return {input.height / window_, input.width / window_, input.channels};
}

size_t MaxPool2D::Describe(NetworkGraph& graph, size_t input) const {
  if (general_) return general_->Describe(graph, input);
  const Operation pool{
      .kind = OperationKind::kMaxPool, .inputs = {input}, .window = {window_, window_}};
  return graph.Add(pool, OutputShape(graph.shapes()[input]));
}

// If the next layer needs another format than the previous layer produces, pooling converts the
// format for free: it reads 4 times as much as it writes.
Tensor* MaxPool2D::BuildForward(Builder& builder, Tensor* input) {
  if (general_) return general_->BuildForward(builder, input);
  const Shape shape = OutputShape(input->shape);
  batch_ = builder.batch();
  input_ = input;
  output_ = builder.NewTensor(shape, builder.plain_output ? shape.channels : input->block, false);
  winners_ = builder.NewMemo(size_t(batch_) * output_->stride());
  return output_;
}

// The input gradient overwrites the input. Neither this layer nor the layer before reads the input
// again, because the winners already contain the ReLU of the input.
void MaxPool2D::BuildBackward(Builder& builder, bool input_gradient) {
  if (general_) return general_->BuildBackward(builder, input_gradient);
  if (!input_gradient) return;
  if (input_->shared) return builder.GiveGradient(input_);
  builder.PutGradient(input_, input_->data);
}

void MaxPool2D::Forward(const Pass& pass) {
  if (general_) return general_->Forward(pass);
  ForEachExample(batch_, [&](size_t i) {
    const size_t from = i * input_->stride(), to = i * output_->stride();
    if (input_->dtype == DType::kBF16) {
      PoolForward(
          *input_, *output_, window_, As<Bf16>(input_->data) + from, As<Bf16>(output_->data) + to,
          winners_->data + to);
    } else {
      PoolForward(
          *input_, *output_, window_, input_->data + from, output_->data + to, winners_->data + to);
    }
  });
}

void MaxPool2D::BackwardData(const Pass& pass) {
  if (general_) return general_->BackwardData(pass);
  ForEachExample(batch_, [&](size_t i) {
    const size_t from = i * input_->stride(), to = i * output_->stride();
    if (input_->dtype == DType::kBF16) {
      PoolBackward(
          *input_, *output_, window_, As<Bf16>(output_->gradient) + to, winners_->data + to,
          As<Bf16>(input_->gradient) + from);
    } else {
      PoolBackward(
          *input_, *output_, window_, output_->gradient + to, winners_->data + to,
          input_->gradient + from);
    }
  });
}

namespace {

using dnnl::algorithm;
using dnnl::memory;

}  // namespace

// The output has the format of the input. If oneDNN has only reference implementations for this
// format, the layer tries other formats. For the backward pass of a maximum, oneDNN stores its
// position in a workspace, per micro-batch.
struct WindowPool2D::Impl {
  Builder* builder;
  size_t batch;
  Tensor *input, *output;
  Shape output_shape;
  onednn::Pooling pooling;  // with the formats that oneDNN computes in
  onednn::PoolingForward forward_description;
  onednn::PoolingBackward backward_description;
  PrimitiveSequence forward, backward;
  Memo* memo = nullptr;
  memory workspace;

  memory::desc Activations(const Shape& shape, int block) const {
    return DescribeActivations(shape, block, builder->batch(), DataTypeOf(builder->dtype));
  }

  // Describes both directions. Returns true if both have an implementation that is not a reference.
  bool Describe(int block) {
    pooling.source = Activations(input->shape, block);
    pooling.destination = Activations(output_shape, block);
    const dnnl::primitive_attr attribute = onednn::ScratchAttribute(false);
    forward_description = DescribeForward(builder->engine(), pooling, attribute);
    if (!onednn::Exists(forward_description)) return false;
    backward_description =
        DescribeBackward(builder->engine(), pooling, attribute, forward_description);
    return onednn::Exists(backward_description) &&
           !IsReference(onednn::ImplementationOf(forward_description)) &&
           !IsReference(onednn::ImplementationOf(backward_description));
  }

  void ChooseFormat() {
    const int channels = input->shape.channels;
    for (const int block : {input->block, 16, 8, channels, 1}) {
      if (!Describe(block)) continue;
      output = builder->NewTensor(output_shape, block, false);
      return;
    }
    Describe(input->block);
    output = builder->NewTensor(output_shape, input->block, false);
  }

  void BindForward() {
    const size_t bytes = forward_description.workspace_desc().get_size();
    if (bytes > 0) memo = builder->NewMemo(bytes);
    workspace = memory(forward_description.workspace_desc(), builder->engine(), DNNL_MEMORY_NONE);
    forward.Append(
        {dnnl::pooling_forward(forward_description),
         {{DNNL_ARG_SRC, forward.Reads(*builder, builder->DataOf(*input), pooling.source)},
          {DNNL_ARG_DST, builder->DataOf(*output)},
          {DNNL_ARG_WORKSPACE, workspace},
          {DNNL_ARG_SCRATCHPAD, builder->NewScratch(forward_description.scratchpad_desc())}}});
  }

  void BindBackward() {
    backward.Append(
        {dnnl::pooling_backward(backward_description),
         {{DNNL_ARG_DIFF_DST, builder->GradientOf(*output)},
          {DNNL_ARG_DIFF_SRC,
           backward.Writes(*builder, builder->GradientOf(*input), pooling.source)},
          {DNNL_ARG_WORKSPACE, workspace},
          {DNNL_ARG_SCRATCHPAD, builder->NewScratch(backward_description.scratchpad_desc())}}});
  }

  void Run(const PrimitiveSequence& sequence) {
    if (memo != nullptr) workspace.set_data_handle(memo->data);
    sequence.Run(builder->stream());
  }
};

WindowPool2D::WindowPool2D(Operation operation, const Window& window)
    : operation_(operation), window_(window) {}
WindowPool2D::~WindowPool2D() = default;
WindowPool2D::WindowPool2D(WindowPool2D&&) noexcept = default;

std::string WindowPool2D::kind() const {
  return operation_ == Operation::kMax ? "max_pool2d" : "average_pool2d";
}

std::string WindowPool2D::description() const { return Text(kind(), " ", ToString(window_)); }

LayerSettings WindowPool2D::settings() const {
  LayerSettings settings;
  SetWindow("pool_size", window_, settings);
  return settings;
}

Shape WindowPool2D::OutputShape(const Shape& input) const {
  return WindowOutput(window_, input, input.channels);
}

size_t WindowPool2D::Describe(NetworkGraph& graph, size_t input) const {
  const bool is_max = operation_ == Operation::kMax;
  const models::Operation pool{
      .kind = is_max ? OperationKind::kMaxPool : OperationKind::kAveragePool,
      .inputs = {input},
      .window = window_};
  return graph.Add(pool, OutputShape(graph.shapes()[input]));
}

Tensor* WindowPool2D::BuildForward(Builder& builder, Tensor* input) {
  const WindowExtent rows = ExtentOf(window_, input->shape.height);
  const WindowExtent columns = ExtentOf(window_, input->shape.width);
  impl_ = std::make_unique<Impl>();
  impl_->builder = &builder;
  impl_->batch = size_t(builder.batch());
  impl_->input = input;
  impl_->output_shape = OutputShape(input->shape);
  impl_->pooling.how = operation_ == Operation::kMax ? algorithm::pooling_max
                                                     : algorithm::pooling_avg_exclude_padding;
  impl_->pooling.stride = {window_.stride, window_.stride};
  impl_->pooling.size = {window_.size, window_.size};
  impl_->pooling.before = {rows.before, columns.before};
  impl_->pooling.after = {rows.after, columns.after};
  impl_->ChooseFormat();
  impl_->BindForward();
  builder.Report("forward", onednn::ImplementationOf(impl_->forward_description));
  return impl_->output;
}

void WindowPool2D::BuildBackward(Builder& builder, bool input_gradient) {
  if (!input_gradient) return;
  builder.GiveGradient(impl_->input);
  impl_->BindBackward();
  builder.Report("backward data", onednn::ImplementationOf(impl_->backward_description));
}

void WindowPool2D::Forward(const Pass&) { impl_->Run(impl_->forward); }

void WindowPool2D::BackwardData(const Pass&) {
  const Tensor& input = *impl_->input;
  impl_->Run(impl_->backward);
  if (input.relu) MaskByRelu(input.data, impl_->batch * input.stride(), input.gradient);
}

namespace {

// The mean of the channels of one group.
void MeanOf(const float* x, size_t pixels, size_t block, size_t channels, float* mean) {
  std::fill_n(mean, channels, 0.0f);
  for (size_t p = 0; p < pixels; ++p, x += block) {
    for (size_t c = 0; c < channels; ++c) mean[c] += x[c];
  }
  for (size_t c = 0; c < channels; ++c) mean[c] /= static_cast<float>(pixels);
}

// Writes mean / pixels to the gradient of each pixel. Padding channels get 0.
void SpreadOver(
    const float* data, bool relu, size_t pixels, size_t block, size_t channels, const float* mean,
    float* gradient) {
  const float share = 1 / static_cast<float>(pixels);
  for (size_t p = 0; p < pixels; ++p, data += block, gradient += block) {
    for (size_t c = 0; c < channels; ++c) gradient[c] = !relu || data[c] > 0 ? mean[c] * share : 0;
    std::fill(gradient + channels, gradient + block, 0.0f);
  }
}

// Calls body(offset of the group in the example, first channel, number of channels).
template <typename Body>
void ForEachGroup(const Tensor& tensor, const Body& body) {
  const auto channels = size_t(tensor.shape.channels), block = size_t(tensor.block);
  for (size_t c = 0; c < channels; c += block)
    body(c * tensor.shape.pixels(), c, std::min(block, channels - c));
}

}  // namespace

size_t GlobalAveragePool2D::Describe(NetworkGraph& graph, size_t input) const {
  return graph.Add(
      {.kind = OperationKind::kGlobalAveragePool, .inputs = {input}},
      OutputShape(graph.shapes()[input]));
}

Tensor* GlobalAveragePool2D::BuildForward(Builder& builder, Tensor* input) {
  batch_ = builder.batch();
  input_ = input;
  output_ = builder.NewTensor(OutputShape(input->shape), input->shape.channels, false);
  return output_;
}

void GlobalAveragePool2D::BuildBackward(Builder& builder, bool input_gradient) {
  if (input_gradient) builder.GiveGradient(input_);
}

void GlobalAveragePool2D::Forward(const Pass&) {
  const Tensor &x = *input_, &y = *output_;
  ForEachExample(batch_, [&](size_t i) {
    ForEachGroup(x, [&](size_t at, size_t c, size_t channels) {
      MeanOf(
          x.data + i * x.stride() + at, x.shape.pixels(), size_t(x.block), channels,
          y.data + i * y.stride() + c);
    });
  });
}

void GlobalAveragePool2D::BackwardData(const Pass&) {
  const Tensor &x = *input_, &y = *output_;
  ForEachExample(batch_, [&](size_t i) {
    ForEachGroup(x, [&](size_t at, size_t c, size_t channels) {
      const size_t from = i * x.stride() + at;
      SpreadOver(
          x.data + from, x.relu, x.shape.pixels(), size_t(x.block), channels,
          y.gradient + i * y.stride() + c, x.gradient + from);
    });
  });
}

}  // namespace dtrun::models
