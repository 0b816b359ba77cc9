#include "models/layers/window_pool2d.h"

#include <dnnl.hpp>

#include "models/layers/builder.h"
#include "models/layers/convolution_plan.h"
#include "models/layers/kernels.h"
#include "models/layers/window_settings.h"
#include "models/onednn/onednn.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

using dnnl::algorithm;
using dnnl::memory;

}  // namespace

// The output has the input's format, unless oneDNN has only reference implementations for that one
// and others for another format. For the way back of a maximum oneDNN keeps where it was, per
// micro-batch.
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

  // Whether both directions have an implementation that is made for speed.
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

}  // namespace dtrun::models
