#include "models/layers/dense.h"

#include <dtrun/error.h>
#include <dtrun/optimizer.h>

#include <cstring>
#include <dnnl.hpp>
#include <memory>

#include "models/layers/builder.h"
#include "models/layers/cpu_kernels.h"
#include "models/layers/layer.h"
#include "models/layers/layer_plumbing.h"
#include "models/layers/network_graph.h"
#include "models/layers/registry.h"
#include "models/message_text.h"
#include "models/onednn/onednn.h"

namespace dtrun::models {

/// The tensors, parameters and sizes of a dense layer.
struct DenseTensors {
  Tensor *input = nullptr, *output = nullptr;    // (batch, inputs), (batch, units)
  Parameter *kernel = nullptr, *bias = nullptr;  // (inputs, units), (units)
  int batch = 0, inputs = 0, units = 0;
  bool relu = false;  // of this layer; a residual block may set another output->relu
};

/// The products of a dense layer in one dtype, with the functions of Layer. BuildBackwardData is
/// called only if the input has a gradient.
class DenseProducts {
 public:
  virtual ~DenseProducts() = default;
  virtual void BuildBackwardWeights() = 0;
  virtual void BuildBackwardData() = 0;
  virtual void PrepareWeights() = 0;
  virtual void Forward() = 0;
  virtual void BackwardWeights(const Pass& pass) = 0;
  /// Does not apply the ReLU of the input.
  virtual void BackwardData() = 0;
};

std::unique_ptr<DenseProducts> MakeDenseF32(Builder& builder, const DenseTensors& tensors);
std::unique_ptr<DenseProducts> MakeDenseBf16(Builder& builder, const DenseTensors& tensors);

struct Dense::Impl {
  DenseTensors tensors;
  std::unique_ptr<DenseProducts> products;
};

Dense::Dense(int units, Activation activation)
    : Dense(units, DenseOptions{.activation = activation}) {}
Dense::Dense(int units, const DenseOptions& options)
    : units_(units), activation_(options.activation), kernel_l2_(options.kernel_l2) {}
Dense::~Dense() = default;
Dense::Dense(Dense&&) noexcept = default;

std::string Dense::description() const {
  return Text("dense ", units_, activation_ == Activation::kRelu ? " relu" : "");
}

LayerSettings Dense::settings() const {
  return LayerSettings()
      .Set("units", units_)
      .Set("activation", NameOf(activation_))
      .Set("kernel_l2", kernel_l2_);
}

Shape Dense::OutputShape(const Shape&) const {
  if (units_ < 1)
    throw Error(ErrorCode::kInvalidArgument, Text("needs at least 1 unit, got ", units_));
  return {1, 1, units_};
}

std::vector<ParameterSpec> Dense::ParameterSpecs(const Shape& input) const {
  const int inputs = static_cast<int>(input.count());
  return {
      {.name = "kernel",
       .shape = {inputs, units_},
       .fan_in = inputs,
       .fan_out = units_,
       .l2 = kernel_l2_},
      {.name = "bias", .shape = {units_}}};
}

size_t Dense::Describe(NetworkGraph& graph, size_t input) const {
  const Operation dense{
      .kind = OperationKind::kDense, .inputs = {input}, .parameters = graph.TakeParameters(2)};
  return graph.AddActivation(graph.Add(dense, OutputShape(graph.shapes()[input])), activation_);
}

Tensor* Dense::BuildForward(Builder& builder, Tensor* input) {
  impl_ = std::make_unique<Impl>();
  DenseTensors& tensors = impl_->tensors;
  tensors.batch = builder.batch();
  tensors.inputs = static_cast<int>(input->shape.count());
  tensors.units = units_;
  tensors.relu = activation_ == Activation::kRelu;
  tensors.input = input;
  tensors.output =
      builder.NewTensor(OutputShape(input->shape), units_, activation_ == Activation::kRelu);
  tensors.kernel = &builder.parameters[0];
  tensors.bias = &builder.parameters[1];
  impl_->products = builder.dtype == DType::kBF16 ? MakeDenseBf16(builder, tensors)
                                                  : MakeDenseF32(builder, tensors);
  return tensors.output;
}

void Dense::BuildBackward(Builder& builder, bool input_gradient) {
  impl_->products->BuildBackwardWeights();
  if (!input_gradient) return;
  builder.GiveGradient(impl_->tensors.input);
  impl_->products->BuildBackwardData();
}

void Dense::PrepareWeights() { impl_->products->PrepareWeights(); }
void Dense::Forward(const Pass&) { impl_->products->Forward(); }
void Dense::BackwardWeights(const Pass& pass) { impl_->products->BackwardWeights(pass); }

void Dense::BackwardData(const Pass&) {
  impl_->products->BackwardData();
  const Tensor& input = *impl_->tensors.input;
  if (input.relu) MaskByRelu(input, size_t(impl_->tensors.batch));
}

// f32: matrix products on the parameters themselves. The gradients are summed over the
// micro-batches directly in the parameters' gradients. Only the input gradient needs the transposed
// kernel. One transposition per step is cheaper than a transposition in every product: 11 against
// 22 us per image of network C at micro-batch 32.

namespace {

// oneDNN reports no implementation name for sgemm. On x86, oneDNN generates sgemm for every
// instruction set.
constexpr char kGemm[] = "dnnl_sgemm";

// c (m, n) = a (m, k) times b (k, n); plus the old c if `add`. 'T': the operand is stored
// transposed.
void Multiply(
    char transpose_a, char transpose_b, int m, int n, int k, const float* a, const float* b,
    bool add, float* c) {
  const int a_width = transpose_a == 'T' ? m : k, b_width = transpose_b == 'T' ? k : n;
  const dnnl_status_t status = dnnl_sgemm(
      transpose_a, transpose_b, m, n, k, 1.0f, a, a_width, b, b_width, add ? 1.0f : 0.0f, c, n);
  if (status != dnnl_success) {
    throw Error(
        ErrorCode::kSystem, Text("oneDNN's sgemm of ", m, "x", n, "x", k, ": status ", status));
  }
}

class DenseF32 : public DenseProducts {
 public:
  DenseF32(Builder& builder, const DenseTensors& tensors) : builder_(builder), t_(tensors) {
    builder.Report("forward", kGemm);
  }

  void BuildBackwardWeights() override { builder_.Report("backward weights", kGemm); }
  void BuildBackwardData() override {
    builder_.Report("backward data", kGemm);
    transposed_kernel_ = builder_.NewFloats(t_.kernel->value.count);
  }

  void PrepareWeights() override {
    if (transposed_kernel_ == nullptr) return;
    Transpose(Floats(t_.kernel->value), size_t(t_.inputs), size_t(t_.units), transposed_kernel_);
  }

  void Forward() override {
    Multiply(
        'N', 'N', t_.batch, t_.units, t_.inputs, t_.input->data, Floats(t_.kernel->value), false,
        t_.output->data);
    AddBias(Floats(t_.bias->value), size_t(t_.batch), size_t(t_.units), t_.relu, t_.output->data);
  }

  void BackwardWeights(const Pass& pass) override {
    const bool add = !pass.first;
    Multiply(
        'T', 'N', t_.inputs, t_.units, t_.batch, t_.input->data, t_.output->gradient, add,
        Floats(t_.kernel->gradient));
    SumRows(
        t_.output->gradient, size_t(t_.batch), size_t(t_.units), add, Floats(t_.bias->gradient));
  }

  void BackwardData() override {
    Multiply(
        'N', 'N', t_.batch, t_.inputs, t_.units, t_.output->gradient, transposed_kernel_, false,
        t_.input->gradient);
  }

 private:
  Builder& builder_;
  DenseTensors t_;
  float* transposed_kernel_ = nullptr;  // (units, inputs)
};

}  // namespace

std::unique_ptr<DenseProducts> MakeDenseF32(Builder& builder, const DenseTensors& tensors) {
  return std::make_unique<DenseF32>(builder, tensors);
}

// bf16: oneDNN's inner products on bf16 copies of the kernel, made once per step in oneDNN's
// formats. Each call writes a gradient in f32. The gradients of a step are summed in oneDNN's
// format. The last pass converts the sum to the parameter's order.

namespace {

using dnnl::memory;

class DenseBf16 : public DenseProducts {
 public:
  DenseBf16(Builder& builder, const DenseTensors& tensors)
      : builder_(builder),
        t_(tensors),
        product_(
            {Plain(t_.inputs),
             {Size(), memory::data_type::bf16, memory::format_tag::any},
             {{t_.units}, memory::data_type::f32, memory::format_tag::a},
             Plain(t_.units)}),
        forward_description_(
            DescribeForward(builder.engine(), product_, onednn::ScratchAttribute(t_.relu))) {
    CheckExists(forward_description_);
    builder.Report("forward", onednn::ImplementationOf(forward_description_));
    const memory packed = builder.NewMemory(forward_description_.weights_desc());
    kernel_value_ = View(KerasOrder(memory::data_type::f32), t_.kernel->value.data);
    bias_value_ = View(product_.bias, t_.bias->value.data);
    forward_ = {
        dnnl::inner_product_forward(forward_description_),
        {{DNNL_ARG_SRC, View(product_.source, t_.input->data)},
         {DNNL_ARG_WEIGHTS, packed},
         {DNNL_ARG_BIAS, bias_value_},
         {DNNL_ARG_DST, View(product_.destination, t_.output->data)},
         {DNNL_ARG_SCRATCHPAD, builder.NewScratch(forward_description_.scratchpad_desc())}}};
    // Two steps: the values are rounded to bf16 once, and both formats are made from the rounded
    // values.
    rounded_ = builder.NewMemory(KerasOrder(memory::data_type::bf16));
    round_ = BoundReorder(kernel_value_, rounded_);
    pack_for_forward_ = BoundReorder(rounded_, packed);
  }

  void BuildBackwardWeights() override {
    onednn::InnerProduct with_f32_gradient = product_;
    with_f32_gradient.weights = {Size(), memory::data_type::f32, memory::format_tag::any};
    const onednn::InnerProductBackwardWeights description = DescribeBackwardWeights(
        builder_.engine(), with_f32_gradient, onednn::ScratchAttribute(false),
        forward_description_);
    CheckExists(description);
    builder_.Report("backward weights", onednn::ImplementationOf(description));
    const memory scratch = builder_.NewScratch(description.scratchpad_desc());
    const auto bind = [&](memory& kernel_into, memory& bias_into) -> BoundPrimitive {
      kernel_into = builder_.NewMemory(description.diff_weights_desc());
      bias_into = builder_.NewMemory(description.diff_bias_desc());
      return {
          dnnl::inner_product_backward_weights(description),
          {{DNNL_ARG_SRC, View(product_.source, t_.input->data)},
           {DNNL_ARG_DIFF_DST, View(product_.destination, t_.output->gradient)},
           {DNNL_ARG_DIFF_WEIGHTS, kernel_into},
           {DNNL_ARG_DIFF_BIAS, bias_into},
           {DNNL_ARG_SCRATCHPAD, scratch}}};
    };
    backward_to_sum_ = bind(kernel_sum_, bias_sum_);
    backward_to_term_ = bind(kernel_term_, bias_term_);
    kernel_gradient_ = View(KerasOrder(memory::data_type::f32), nullptr);
    unpack_gradient_ = BoundReorder(kernel_sum_, kernel_gradient_);
  }

  void BuildBackwardData() override {
    const onednn::InnerProductBackwardData description = DescribeBackwardData(
        builder_.engine(), product_, onednn::ScratchAttribute(false), forward_description_);
    CheckExists(description);
    builder_.Report("backward data", onednn::ImplementationOf(description));
    const memory packed = builder_.NewMemory(description.weights_desc());
    pack_for_backward_ = BoundReorder(rounded_, packed);
    packs_for_backward_ = true;
    backward_data_ = {
        dnnl::inner_product_backward_data(description),
        {{DNNL_ARG_DIFF_DST, View(product_.destination, t_.output->gradient)},
         {DNNL_ARG_WEIGHTS, packed},
         {DNNL_ARG_DIFF_SRC, View(product_.source, t_.input->gradient)},
         {DNNL_ARG_SCRATCHPAD, builder_.NewScratch(description.scratchpad_desc())}}};
  }

  void PrepareWeights() override {
    kernel_value_.set_data_handle(t_.kernel->value.data);
    bias_value_.set_data_handle(t_.bias->value.data);
    round_.Run(builder_.stream());
    pack_for_forward_.Run(builder_.stream());
    if (packs_for_backward_) pack_for_backward_.Run(builder_.stream());
  }

  void Forward() override { forward_.Run(builder_.stream()); }

  void BackwardWeights(const Pass& pass) override {
    if (pass.first) {
      backward_to_sum_.Run(builder_.stream());
    } else {
      backward_to_term_.Run(builder_.stream());
      AddTo(kernel_term_, kernel_sum_);
      AddTo(bias_term_, bias_sum_);
    }
    if (!pass.last) return;
    kernel_gradient_.set_data_handle(t_.kernel->gradient.data);
    unpack_gradient_.Run(builder_.stream());
    std::memcpy(t_.bias->gradient.data, Floats(bias_sum_), t_.bias->gradient.bytes());
  }

  void BackwardData() override { backward_data_.Run(builder_.stream()); }

 private:
  static float* Floats(const memory& piece) { return static_cast<float*>(piece.get_data_handle()); }
  static void AddTo(const memory& term, const memory& sum) {
    Add(Floats(term), sum.get_desc().get_size() / sizeof(float), Floats(sum));
  }

  memory::dims Size() const { return {t_.units, t_.inputs}; }
  memory::desc Plain(int width) const {
    return memory::desc({t_.batch, width}, memory::data_type::bf16, memory::format_tag::ab);
  }
  memory::desc KerasOrder(memory::data_type type) const {
    return memory::desc(Size(), type, memory::format_tag::ba);
  }
  memory View(const memory::desc& description, void* data) {
    return memory(description, builder_.engine(), data);
  }
  template <typename Description>
  static void CheckExists(const Description& description) {
    if (onednn::Exists(description)) return;
    throw Error(
        ErrorCode::kUnavailable,
        Text("oneDNN ", onednn::Version(), " has no implementation of this product in bf16"));
  }

  Builder& builder_;
  DenseTensors t_;
  onednn::InnerProduct product_;
  onednn::InnerProductForward forward_description_;
  memory kernel_value_, bias_value_;  // PrepareWeights updates their addresses
  memory rounded_;
  BoundPrimitive round_, pack_for_forward_, pack_for_backward_, forward_, backward_data_;
  bool packs_for_backward_ = false;
  // Gradients: the sum of the passes so far, and the term of a pass after the first.
  memory kernel_sum_, bias_sum_, kernel_term_, bias_term_, kernel_gradient_;
  BoundPrimitive backward_to_sum_, backward_to_term_, unpack_gradient_;
};

}  // namespace

std::unique_ptr<DenseProducts> MakeDenseBf16(Builder& builder, const DenseTensors& tensors) {
  return std::make_unique<DenseBf16>(builder, tensors);
}

}  // namespace dtrun::models
