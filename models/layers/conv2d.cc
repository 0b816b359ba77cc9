#include "models/layers/conv2d.h"

#include <dtrun/error.h>

#include <cstring>
#include <dnnl.hpp>

#include "models/layers/builder.h"
#include "models/layers/convolution_plan.h"
#include "models/layers/cpu_kernels.h"
#include "models/layers/layer_plumbing.h"
#include "models/layers/network_graph.h"
#include "models/layers/registry.h"
#include "models/layers/settings.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

using dnnl::memory;

size_t FloatsOf(const memory& piece) { return piece.get_desc().get_size() / sizeof(float); }
float* DataOf(const memory& piece) { return static_cast<float*>(piece.get_data_handle()); }

}  // namespace

// The parameters keep Keras's order. oneDNN computes on copies in its own formats, made once per
// step; the copies are bf16 if the layer computes in bf16. The weight gradient is summed over the
// micro-batches in oneDNN's format, in f32. The last pass converts the sum to the parameter's
// order.
//
// PlanConvolution chooses the format of the activations and an implementation for each direction.
// On AVX-512 the format is nChw16c. At micro-batch 32 on one thread, network C's convolutions take
// 323 us per image with nChw16c and 478 us with channels last. With channels last, the weight
// gradients take twice as long.
struct Conv2D::Impl {
  Builder* builder;
  int batch;
  ConvolutionProblem problem;
  ConvolutionPlan plan;
  Tensor *input, *output;
  Parameter *kernel, *bias;  // null: without bias

  PrimitiveSequence forward, backward_data;
  BoundPrimitive pack_for_forward, pack_for_backward;
  // Views of the parameters' values. PrepareWeights updates their addresses.
  memory kernel_value, bias_value;
  // Gradients: the sum of the micro-batches so far, and the term of a micro-batch after the first.
  memory kernel_sum, bias_sum, kernel_term, bias_term, kernel_gradient;
  PrimitiveSequence backward_to_sum, backward_to_term;
  BoundPrimitive unpack_gradient;
  std::unique_ptr<WeightGradient> own_gradient;  // replaces all gradients above

  memory KerasOrder(void* values) const {
    const memory::desc description(
        {problem.output.channels, problem.input.channels, problem.size, problem.size},
        memory::data_type::f32, memory::format_tag::hwio);
    return memory(description, builder->engine(), values);
  }

  void FindValues() {
    kernel_value.set_data_handle(kernel->value.data);
    if (bias != nullptr) bias_value.set_data_handle(bias->value.data);
  }

  void BindForward() {
    const onednn::ConvolutionForward& description = plan.forward.description;
    const memory packed = builder->NewMemory(description.weights_desc());
    kernel_value = KerasOrder(kernel->value.data);
    // Without bias, bias_desc() is an empty description.
    bias_value = memory(
        description.bias_desc(), builder->engine(), bias == nullptr ? nullptr : bias->value.data);
    pack_for_forward = BoundReorder(kernel_value, packed);
    forward.Append(
        {dnnl::convolution_forward(description),
         {{DNNL_ARG_SRC, forward.Reads(*builder, builder->DataOf(*input), description.src_desc())},
          {DNNL_ARG_WEIGHTS, packed},
          {DNNL_ARG_BIAS, bias_value},
          {DNNL_ARG_DST,
           forward.Writes(*builder, builder->DataOf(*output), description.dst_desc())},
          {DNNL_ARG_SCRATCHPAD, builder->NewScratch(description.scratchpad_desc())}}});
  }

  void BindBackwardWeights() {
    const onednn::ConvolutionBackwardWeights& description = plan.backward_weights.description;
    if (!onednn::Exists(description)) {
      own_gradient = std::make_unique<WeightGradient>(
          problem.input, problem.output, problem.size, static_cast<int>(problem.stride[0]),
          static_cast<int>(problem.before[0]), static_cast<int>(problem.before[1]), output->block);
      return;
    }
    const memory scratch = builder->NewScratch(description.scratchpad_desc());
    const auto bind = [&](memory& kernel_into, memory& bias_into, PrimitiveSequence& sequence) {
      kernel_into = builder->NewMemory(description.diff_weights_desc());
      bias_into = builder->NewMemory(description.diff_bias_desc());
      sequence.Append(
          {dnnl::convolution_backward_weights(description),
           {{DNNL_ARG_SRC,
             sequence.Reads(*builder, builder->DataOf(*input), description.src_desc())},
            {DNNL_ARG_DIFF_DST,
             sequence.Reads(*builder, builder->GradientOf(*output), description.diff_dst_desc())},
            {DNNL_ARG_DIFF_WEIGHTS, kernel_into},
            {DNNL_ARG_DIFF_BIAS, bias_into},
            {DNNL_ARG_SCRATCHPAD, scratch}}});
    };
    bind(kernel_sum, bias_sum, backward_to_sum);
    bind(kernel_term, bias_term, backward_to_term);
    kernel_gradient = KerasOrder(DNNL_MEMORY_NONE);
    unpack_gradient = BoundReorder(kernel_sum, kernel_gradient);
  }

  void BindBackwardData() {
    const onednn::ConvolutionBackwardData& description = plan.backward_data.description;
    const memory packed = builder->NewMemory(description.weights_desc());
    pack_for_backward = BoundReorder(kernel_value, packed);
    backward_data.Append(
        {dnnl::convolution_backward_data(description),
         {{DNNL_ARG_DIFF_DST,
           backward_data.Reads(
               *builder, builder->GradientOf(*output), description.diff_dst_desc())},
          {DNNL_ARG_WEIGHTS, packed},
          {DNNL_ARG_DIFF_SRC,
           backward_data.Writes(
               *builder, builder->GradientOf(*input), description.diff_src_desc())},
          {DNNL_ARG_SCRATCHPAD, builder->NewScratch(description.scratchpad_desc())}}});
  }

  void ApplyOwnRelu() const {
    const size_t stride = output->stride();
    ForEachExample(batch, [&](size_t i) { ApplyRelu(stride, output->data + i * stride); });
  }

  void AddToWeightGradient(const Pass& pass) {
    if (own_gradient != nullptr)
      return own_gradient->Add(input->data, output->gradient, batch, pass.first);
    if (pass.first) return backward_to_sum.Run(builder->stream());
    backward_to_term.Run(builder->stream());
    Add(DataOf(kernel_term), FloatsOf(kernel_sum), DataOf(kernel_sum));
    Add(DataOf(bias_term), FloatsOf(bias_sum), DataOf(bias_sum));
  }

  void WriteWeightGradient() {
    if (own_gradient != nullptr) {
      return own_gradient->Write(
          static_cast<float*>(kernel->gradient.data),
          bias == nullptr ? nullptr : static_cast<float*>(bias->gradient.data));
    }
    kernel_gradient.set_data_handle(kernel->gradient.data);
    unpack_gradient.Run(builder->stream());
    if (bias != nullptr) std::memcpy(bias->gradient.data, DataOf(bias_sum), bias->gradient.bytes());
  }
};

Conv2D::Conv2D(int filters, int size, Activation activation)
    : Conv2D(filters, size, Conv2DOptions{.activation = activation}) {}
Conv2D::Conv2D(int filters, int size, const Conv2DOptions& options)
    : filters_(filters),
      window_{size, options.stride, options.padding},
      activation_(options.activation),
      use_bias_(options.use_bias),
      initializer_(options.kernel_initializer),
      kernel_l2_(options.kernel_l2) {}
Conv2D::~Conv2D() = default;
Conv2D::Conv2D(Conv2D&&) noexcept = default;

std::string Conv2D::description() const {
  return Text(
      "conv2d ", filters_, " ", ToString(window_), use_bias_ ? "" : " without bias",
      activation_ == Activation::kRelu ? " relu" : "");
}

LayerSettings Conv2D::settings() const {
  LayerSettings settings;
  SetWindow("kernel_size", window_, settings);
  return settings.Set("filters", filters_)
      .Set("activation", NameOf(activation_))
      .Set("use_bias", use_bias_)
      .Set("kernel_initializer", NameOf(initializer_))
      .Set("kernel_l2", kernel_l2_);
}

Shape Conv2D::OutputShape(const Shape& input) const {
  if (filters_ < 1) {
    throw Error(ErrorCode::kInvalidArgument, Text("needs at least 1 filter, got ", filters_));
  }
  return WindowOutput(window_, input, filters_);
}

std::vector<ParameterSpec> Conv2D::ParameterSpecs(const Shape& input) const {
  const int size = window_.size, area = size * size, channels = input.channels;
  std::vector<ParameterSpec> specs = {
      {.name = "kernel",
       .shape = {size, size, channels, filters_},
       .fan_in = area * channels,
       .fan_out = area * filters_,
       .initializer = initializer_,
       .l2 = kernel_l2_}};
  if (use_bias_) specs.push_back({.name = "bias", .shape = {filters_}});
  return specs;
}

size_t Conv2D::Describe(NetworkGraph& graph, size_t input) const {
  const Operation convolution{
      .kind = OperationKind::kConvolution,
      .inputs = {input},
      .parameters = graph.TakeParameters(use_bias_ ? 2 : 1),
      .window = window_};
  return graph.AddActivation(
      graph.Add(convolution, OutputShape(graph.shapes()[input])), activation_);
}

Tensor* Conv2D::BuildForward(Builder& builder, Tensor* input) {
  impl_ = std::make_unique<Impl>();
  impl_->builder = &builder;
  impl_->batch = builder.batch();
  impl_->input = input;
  impl_->kernel = &builder.parameters[0];
  impl_->bias = use_bias_ ? &builder.parameters[1] : nullptr;
  const WindowExtent rows = ExtentOf(window_, input->shape.height);
  const WindowExtent columns = ExtentOf(window_, input->shape.width);
  impl_->problem = {
      .batch = builder.batch(),
      .input = input->shape,
      .output = OutputShape(input->shape),
      .size = window_.size,
      .stride = {window_.stride, window_.stride},
      .before = {rows.before, columns.before},
      .after = {rows.after, columns.after},
      .dtype = builder.dtype,
      .input_block = input->block,
      .bias = use_bias_,
      .relu = activation_ == Activation::kRelu,
      .input_gradient = builder.input_gradient};
  impl_->plan = PlanConvolution(builder.engine(), impl_->problem);
  impl_->output =
      builder.NewTensor(impl_->problem.output, impl_->plan.output_block, impl_->problem.relu);
  impl_->BindForward();
  builder.Report("forward", impl_->plan.forward.implementation);
  return impl_->output;
}

void Conv2D::BuildBackward(Builder& builder, bool input_gradient) {
  impl_->BindBackwardWeights();
  builder.Report("backward weights", impl_->plan.backward_weights.implementation);
  if (!input_gradient) return;
  builder.GiveGradient(impl_->input);
  impl_->BindBackwardData();
  builder.Report("backward data", impl_->plan.backward_data.implementation);
}

void Conv2D::PrepareWeights() {
  impl_->FindValues();
  impl_->pack_for_forward.Run(impl_->builder->stream());
  if (impl_->input->gradient != nullptr) impl_->pack_for_backward.Run(impl_->builder->stream());
}

void Conv2D::Forward(const Pass&) {
  impl_->forward.Run(impl_->builder->stream());
  if (impl_->problem.relu && !impl_->plan.fuses_relu) impl_->ApplyOwnRelu();
}

void Conv2D::BackwardWeights(const Pass& pass) {
  impl_->AddToWeightGradient(pass);
  if (pass.last) impl_->WriteWeightGradient();
}

void Conv2D::BackwardData(const Pass&) {
  impl_->backward_data.Run(impl_->builder->stream());
  if (impl_->input->relu) MaskByRelu(*impl_->input, size_t(impl_->batch));
}

}  // namespace dtrun::models
