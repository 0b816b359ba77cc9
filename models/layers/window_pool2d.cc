#include "models/layers/window_pool2d.h"

#include <dnnl.hpp>

#include "models/layers/builder.h"
#include "models/layers/kernels.h"
#include "models/layers/window_settings.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

using dnnl::algorithm;
using dnnl::memory;

}  // namespace

// The output has the input's format. For the way back of a maximum oneDNN keeps where it was, per
// micro-batch.
struct WindowPool2D::Impl {
  Builder* builder;
  size_t batch;
  Tensor *input, *output;
  algorithm how;
  memory::dims stride, size, before, after;  // rows, columns
  dnnl::pooling_forward::primitive_desc description;
  BoundPrimitive forward, backward;
  Memo* memo = nullptr;
  memory workspace;

  void BindForward() {
    description = {
        {dnnl::prop_kind::forward_training, how, builder->DescriptionOf(*input),
         builder->DescriptionOf(*output), stride, size, before, after},
        builder->ScratchAttribute(),
        builder->engine()};
    const size_t bytes = description.workspace_desc().get_size();
    if (bytes > 0) memo = builder->NewMemo(bytes);
    workspace = memory(description.workspace_desc(), builder->engine(), DNNL_MEMORY_NONE);
    forward = {
        dnnl::pooling_forward(description),
        {{DNNL_ARG_SRC, builder->DataOf(*input)},
         {DNNL_ARG_DST, builder->DataOf(*output)},
         {DNNL_ARG_WORKSPACE, workspace},
         {DNNL_ARG_SCRATCHPAD, builder->NewScratch(description.scratchpad_desc())}}};
  }

  void BindBackward() {
    const dnnl::pooling_backward::primitive_desc way_back(
        {how, builder->DescriptionOf(*input), builder->DescriptionOf(*output), stride, size, before,
         after},
        builder->ScratchAttribute(), builder->engine(), description);
    backward = {
        dnnl::pooling_backward(way_back),
        {{DNNL_ARG_DIFF_DST, builder->GradientOf(*output)},
         {DNNL_ARG_DIFF_SRC, builder->GradientOf(*input)},
         {DNNL_ARG_WORKSPACE, workspace},
         {DNNL_ARG_SCRATCHPAD, builder->NewScratch(way_back.scratchpad_desc())}}};
  }

  void Run(const BoundPrimitive& primitive) {
    if (memo != nullptr) workspace.set_data_handle(memo->data);
    primitive.Run(builder->stream());
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

Tensor* WindowPool2D::BuildForward(Builder& builder, Tensor* input) {
  const WindowExtent rows = ExtentOf(window_, input->shape.height);
  const WindowExtent columns = ExtentOf(window_, input->shape.width);
  Tensor* output = builder.NewTensor(OutputShape(input->shape), input->block, false);
  impl_ = std::make_unique<Impl>();
  impl_->builder = &builder;
  impl_->batch = size_t(builder.batch());
  impl_->input = input;
  impl_->output = output;
  impl_->how = operation_ == Operation::kMax ? algorithm::pooling_max
                                             : algorithm::pooling_avg_exclude_padding;
  impl_->stride = {window_.stride, window_.stride};
  impl_->size = {window_.size, window_.size};
  impl_->before = {rows.before, columns.before};
  impl_->after = {rows.after, columns.after};
  impl_->BindForward();
  return output;
}

void WindowPool2D::BuildBackward(Builder& builder, bool input_gradient) {
  if (!input_gradient) return;
  builder.GiveGradient(impl_->input);
  impl_->BindBackward();
}

void WindowPool2D::Forward(const Pass&) { impl_->Run(impl_->forward); }

void WindowPool2D::BackwardData(const Pass&) {
  const Tensor& input = *impl_->input;
  impl_->Run(impl_->backward);
  if (input.relu) MaskByRelu(input.data, impl_->batch * input.stride(), input.gradient);
}

}  // namespace dtrun::models
