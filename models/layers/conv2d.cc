#include "models/layers/conv2d.h"

#include <dtrun/error.h>

#include <cstring>
#include <dnnl.hpp>

#include "models/layers/builder.h"
#include "models/layers/kernels.h"
#include "models/layers/registry.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

using dnnl::algorithm;
using dnnl::memory;

const memory::dims kStride = {1, 1}, kNoPadding = {0, 0};

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
// made once per step (they are small). A weight gradient is summed over the micro-batches in
// oneDNN's format, and brought into the parameter's order once, at the end.
//
// The activations are in the format that oneDNN asks for as well: on AVX-512 nChw16c. Network C's
// convolutions at micro-batch 32 on one thread, us per image: 323 so, 478 with channels last, whose
// weight gradients take twice as long.
struct Conv2D::Impl {
  Builder* builder;
  int batch;
  Tensor *input, *output;
  Parameter *kernel, *bias;
  memory::desc source, weights, bias_shape, destination;  // `weights` leaves the format open
  dnnl::convolution_forward::primitive_desc forward_description;

  BoundPrimitive pack_for_forward, pack_for_backward, forward, backward_data;
  // Gradients of the micro-batches so far, and of the one at hand when it is not the first.
  memory kernel_sum, bias_sum, kernel_term, bias_term, kernel_gradient;
  BoundPrimitive backward_to_sum, backward_to_term, unpack_gradient;

  memory::desc KerasOrder() const {
    return memory::desc(weights.dims(), memory::data_type::f32, memory::format_tag::hwio);
  }

  void DescribeForward(const memory::desc& wanted_destination) {
    const dnnl::primitive_attr attribute = builder->ScratchAttribute();
    forward_description = {
        {dnnl::prop_kind::forward_training, algorithm::convolution_direct, source, weights,
         bias_shape, wanted_destination, kStride, kNoPadding, kNoPadding},
        output != nullptr && output->relu ? FuseRelu(attribute) : attribute,
        builder->engine()};
  }

  // oneDNN chooses the format; only if it is one that no Tensor can say, channels come last.
  void ChooseOutput(const Shape& shape, bool relu) {
    const memory::desc any(
        {builder->batch(), shape.channels, shape.height, shape.width}, memory::data_type::f32,
        memory::format_tag::any);
    DescribeForward(any);
    const int block = BlockOf(forward_description.dst_desc(), shape, builder->batch());
    output = builder->NewTensor(shape, block == 0 ? shape.channels : block, relu);
    destination = builder->DescriptionOf(*output);
  }

  void BindForward() {
    DescribeForward(destination);
    const memory packed = builder->NewMemory(forward_description.weights_desc());
    pack_for_forward =
        BoundReorder(memory(KerasOrder(), builder->engine(), kernel->value.data), packed);
    forward = {
        dnnl::convolution_forward(forward_description),
        {{DNNL_ARG_SRC, builder->DataOf(*input)},
         {DNNL_ARG_WEIGHTS, packed},
         {DNNL_ARG_BIAS, memory(bias_shape, builder->engine(), bias->value.data)},
         {DNNL_ARG_DST, builder->DataOf(*output)},
         {DNNL_ARG_SCRATCHPAD, builder->NewScratch(forward_description.scratchpad_desc())}}};
  }

  void BindBackwardWeights() {
    const dnnl::convolution_backward_weights::primitive_desc description(
        {algorithm::convolution_direct, source, weights, bias_shape, destination, kStride,
         kNoPadding, kNoPadding},
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
        {algorithm::convolution_direct, source, weights, destination, kStride, kNoPadding,
         kNoPadding},
        builder->ScratchAttribute(), builder->engine(), forward_description);
    const memory packed = builder->NewMemory(description.weights_desc());
    pack_for_backward =
        BoundReorder(memory(KerasOrder(), builder->engine(), kernel->value.data), packed);
    backward_data = {
        dnnl::convolution_backward_data(description),
        {{DNNL_ARG_DIFF_DST, builder->GradientOf(*output)},
         {DNNL_ARG_WEIGHTS, packed},
         {DNNL_ARG_DIFF_SRC, builder->GradientOf(*input)},
         {DNNL_ARG_SCRATCHPAD, builder->NewScratch(description.scratchpad_desc())}}};
  }
};

Conv2D::Conv2D(int filters, int size, Activation activation)
    : filters_(filters), size_(size), activation_(activation) {}
Conv2D::~Conv2D() = default;
Conv2D::Conv2D(Conv2D&&) noexcept = default;

std::string Conv2D::description() const {
  return Text(
      "conv2d ", filters_, " ", size_, "x", size_, activation_ == Activation::kRelu ? " relu" : "");
}

LayerSettings Conv2D::settings() const {
  return LayerSettings()
      .Set("filters", filters_)
      .Set("kernel_size", size_)
      .Set("activation", NameOf(activation_));
}

Shape Conv2D::OutputShape(const Shape& input) const {
  if (input.height < size_ || input.width < size_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("needs an input of at least ", size_, "x", size_, ", got ", ToString(input)));
  }
  return {input.height - size_ + 1, input.width - size_ + 1, filters_};
}

std::vector<ParameterSpec> Conv2D::ParameterSpecs(const Shape& input) const {
  const int area = size_ * size_, channels = input.channels;
  return {
      {"kernel", {size_, size_, channels, filters_}, area * channels, area * filters_},
      {"bias", {filters_}}};
}

Tensor* Conv2D::BuildForward(Builder& builder, Tensor* input) {
  impl_ = std::make_unique<Impl>();
  impl_->builder = &builder;
  impl_->batch = builder.batch();
  impl_->input = input;
  impl_->kernel = &builder.parameters[0];
  impl_->bias = &builder.parameters[1];
  impl_->source = builder.DescriptionOf(*input);
  impl_->weights = memory::desc(
      {filters_, input->shape.channels, size_, size_}, memory::data_type::f32,
      memory::format_tag::any);
  impl_->bias_shape = memory::desc({filters_}, memory::data_type::f32, memory::format_tag::a);
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
    std::memcpy(impl_->bias->gradient.data, DataOf(impl_->bias_sum), impl_->bias->gradient.bytes());
  }
}

void Conv2D::BackwardData(const Pass&) {
  const Tensor& input = *impl_->input;
  impl_->backward_data.Run(impl_->builder->stream());
  if (input.relu) {
    MaskByRelu(input.data, size_t(impl_->batch) * input.stride(), input.gradient);
  }
}

}  // namespace dtrun::models
