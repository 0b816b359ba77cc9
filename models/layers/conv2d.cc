#include "models/layers/conv2d.h"

#include <dtrun/error.h>

#include <cstring>
#include <dnnl.hpp>

#include "models/layers/builder.h"
#include "models/layers/kernels.h"
#include "models/layers/registry.h"
#include "models/layers/window_settings.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

using dnnl::algorithm;
using dnnl::memory;

dnnl::primitive_attr FuseRelu(dnnl::primitive_attr attribute) {
  dnnl::post_ops fused;
  fused.append_eltwise(1.0f, algorithm::eltwise_relu, 0.0f, 0.0f);
  attribute.set_post_ops(fused);
  return attribute;
}

size_t FloatsOf(const memory& piece) { return piece.get_desc().get_size() / sizeof(float); }
float* DataOf(const memory& piece) { return static_cast<float*>(piece.get_data_handle()); }

}  // namespace

// The parameters keep Keras's order; oneDNN computes on copies of them in the formats it likes,
// made once per step (they are small); these are bf16 if the layer computes in that. A weight
// gradient is summed over the micro-batches in oneDNN's format, in f32, and brought into the
// parameter's order once, at the end.
//
// The activations are in the format that oneDNN asks for as well: on AVX-512 nChw16c. Network C's
// convolutions at micro-batch 32 on one thread, us per image: 323 so, 478 with channels last, whose
// weight gradients take twice as long.
struct Conv2D::Impl {
  Builder* builder;
  int batch;
  memory::data_type type;
  Tensor *input, *output;
  Parameter *kernel, *bias;                               // without bias: null
  memory::dims stride, before, after;                     // rows, columns
  memory::desc source, weights, bias_shape, destination;  // `weights` leaves the format open
  dnnl::convolution_forward::primitive_desc forward_description;

  BoundPrimitive pack_for_forward, pack_for_backward, forward, backward_data;
  // The parameters' values, where they lie when weights are prepared.
  memory kernel_value, bias_value;
  // Gradients of the micro-batches so far, and of the one at hand when it is not the first.
  memory kernel_sum, bias_sum, kernel_term, bias_term, kernel_gradient;
  BoundPrimitive backward_to_sum, backward_to_term, unpack_gradient;

  memory::desc WeightsOf(memory::data_type wanted) const {
    return memory::desc(weights.dims(), wanted, memory::format_tag::any);
  }

  memory::desc KerasOrder() const {
    return memory::desc(weights.dims(), memory::data_type::f32, memory::format_tag::hwio);
  }

  void FindValues() {
    kernel_value.set_data_handle(kernel->value.data);
    if (bias != nullptr) bias_value.set_data_handle(bias->value.data);
  }

  void DescribeForward(const memory::desc& wanted_destination) {
    const dnnl::primitive_attr attribute = builder->ScratchAttribute();
    forward_description = {
        {dnnl::prop_kind::forward_training, algorithm::convolution_direct, source, weights,
         bias_shape, wanted_destination, stride, before, after},
        output != nullptr && output->relu ? FuseRelu(attribute) : attribute,
        builder->engine()};
  }

  // oneDNN chooses the format; only if it is one that no Tensor can say, channels come last.
  void ChooseOutput(const Shape& shape, bool relu) {
    const memory::desc any(
        {builder->batch(), shape.channels, shape.height, shape.width}, type,
        memory::format_tag::any);
    DescribeForward(any);
    const int block = BlockOf(forward_description.dst_desc(), shape, builder->batch());
    output = builder->NewTensor(shape, block == 0 ? shape.channels : block, relu);
    destination = builder->DescriptionOf(*output);
  }

  void BindForward() {
    DescribeForward(destination);
    const memory packed = builder->NewMemory(forward_description.weights_desc());
    kernel_value = memory(KerasOrder(), builder->engine(), kernel->value.data);
    // Without bias: a description of nothing.
    bias_value =
        memory(bias_shape, builder->engine(), bias == nullptr ? nullptr : bias->value.data);
    pack_for_forward = BoundReorder(kernel_value, packed);
    forward = {
        dnnl::convolution_forward(forward_description),
        {{DNNL_ARG_SRC, builder->DataOf(*input)},
         {DNNL_ARG_WEIGHTS, packed},
         {DNNL_ARG_BIAS, bias_value},
         {DNNL_ARG_DST, builder->DataOf(*output)},
         {DNNL_ARG_SCRATCHPAD, builder->NewScratch(forward_description.scratchpad_desc())}}};
  }

  void BindBackwardWeights() {
    const dnnl::convolution_backward_weights::primitive_desc description(
        {algorithm::convolution_direct, source, WeightsOf(memory::data_type::f32), bias_shape,
         destination, stride, before, after},
        builder->ScratchAttribute(), builder->engine(), forward_description);
    const memory scratch = builder->NewScratch(description.scratchpad_desc());
    const auto bind = [&](memory& kernel_into, memory& bias_into) -> BoundPrimitive {
      kernel_into = builder->NewMemory(description.diff_weights_desc());
      bias_into = builder->NewMemory(description.diff_bias_desc());
      return {
          dnnl::convolution_backward_weights(description),
          {{DNNL_ARG_SRC, builder->DataOf(*input)},
           {DNNL_ARG_DIFF_DST, builder->GradientOf(*output)},
           {DNNL_ARG_DIFF_WEIGHTS, kernel_into},
           {DNNL_ARG_DIFF_BIAS, bias_into},
           {DNNL_ARG_SCRATCHPAD, scratch}}};
    };
    backward_to_sum = bind(kernel_sum, bias_sum);
    backward_to_term = bind(kernel_term, bias_term);
    kernel_gradient = memory(KerasOrder(), builder->engine(), DNNL_MEMORY_NONE);
    unpack_gradient = BoundReorder(kernel_sum, kernel_gradient);
  }

  void BindBackwardData() {
    const dnnl::convolution_backward_data::primitive_desc description(
        {algorithm::convolution_direct, source, weights, destination, stride, before, after},
        builder->ScratchAttribute(), builder->engine(), forward_description);
    const memory packed = builder->NewMemory(description.weights_desc());
    pack_for_backward = BoundReorder(kernel_value, packed);
    backward_data = {
        dnnl::convolution_backward_data(description),
        {{DNNL_ARG_DIFF_DST, builder->GradientOf(*output)},
         {DNNL_ARG_WEIGHTS, packed},
         {DNNL_ARG_DIFF_SRC, builder->GradientOf(*input)},
         {DNNL_ARG_SCRATCHPAD, builder->NewScratch(description.scratchpad_desc())}}};
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

Tensor* Conv2D::BuildForward(Builder& builder, Tensor* input) {
  impl_ = std::make_unique<Impl>();
  impl_->builder = &builder;
  impl_->batch = builder.batch();
  impl_->type = DataTypeOf(builder.dtype);
  impl_->input = input;
  impl_->kernel = &builder.parameters[0];
  impl_->bias = use_bias_ ? &builder.parameters[1] : nullptr;
  const WindowExtent rows = ExtentOf(window_, input->shape.height);
  const WindowExtent columns = ExtentOf(window_, input->shape.width);
  impl_->stride = {window_.stride, window_.stride};
  impl_->before = {rows.before, columns.before};
  impl_->after = {rows.after, columns.after};
  impl_->source = builder.DescriptionOf(*input);
  impl_->weights = memory::desc(
      {filters_, input->shape.channels, window_.size, window_.size}, impl_->type,
      memory::format_tag::any);
  if (use_bias_) {
    impl_->bias_shape = memory::desc({filters_}, memory::data_type::f32, memory::format_tag::a);
  }
  impl_->ChooseOutput(OutputShape(input->shape), activation_ == Activation::kRelu);
  impl_->BindForward();
  return impl_->output;
}

void Conv2D::BuildBackward(Builder& builder, bool input_gradient) {
  impl_->BindBackwardWeights();
  if (!input_gradient) return;
  builder.GiveGradient(impl_->input);
  impl_->BindBackwardData();
}

void Conv2D::PrepareWeights() {
  impl_->FindValues();
  impl_->pack_for_forward.Run(impl_->builder->stream());
  if (impl_->input->gradient != nullptr) impl_->pack_for_backward.Run(impl_->builder->stream());
}

void Conv2D::Forward(const Pass&) { impl_->forward.Run(impl_->builder->stream()); }

void Conv2D::BackwardWeights(const Pass& pass) {
  dnnl::stream& stream = impl_->builder->stream();
  if (pass.first) {
    impl_->backward_to_sum.Run(stream);
  } else {
    impl_->backward_to_term.Run(stream);
    Add(DataOf(impl_->kernel_term), FloatsOf(impl_->kernel_sum), DataOf(impl_->kernel_sum));
    Add(DataOf(impl_->bias_term), FloatsOf(impl_->bias_sum), DataOf(impl_->bias_sum));
  }
  if (pass.last) {
    impl_->kernel_gradient.set_data_handle(impl_->kernel->gradient.data);
    impl_->unpack_gradient.Run(stream);
    if (use_bias_) {
      Buffer& gradient = impl_->bias->gradient;
      std::memcpy(gradient.data, DataOf(impl_->bias_sum), gradient.bytes());
    }
  }
}

void Conv2D::BackwardData(const Pass&) {
  impl_->backward_data.Run(impl_->builder->stream());
  if (impl_->input->relu) MaskByRelu(*impl_->input, size_t(impl_->batch));
}

}  // namespace dtrun::models
