#include "models/layers/reorder.h"

#include "models/layers/builder.h"

namespace dtrun::models {

struct Reorder::Impl {
  Builder* builder;
  Tensor *input, *output;
  BoundPrimitive forward, backward;
};

Reorder::Reorder() = default;
Reorder::~Reorder() = default;

// The output has the input's ReLU, so that whoever writes its gradient has applied it.
Tensor* Reorder::BuildForward(Builder& builder, Tensor* input) {
  Tensor* output = builder.NewTensor(input->shape, input->shape.channels, input->relu);
  impl_ = std::make_unique<Impl>(Impl{&builder, input, output, {}, {}});
  impl_->forward =
      BoundReorder(builder.MemoryOf(*input, input->data), builder.MemoryOf(*output, output->data));
  return output;
}

void Reorder::BuildBackward(Builder& builder, bool input_gradient) {
  if (!input_gradient) return;
  Tensor &input = *impl_->input, &output = *impl_->output;
  input.gradient = builder.NewGradient(input);
  impl_->backward = BoundReorder(
      builder.MemoryOf(output, output.gradient), builder.MemoryOf(input, input.gradient));
}

void Reorder::Forward(const Pass&) { impl_->forward.Run(impl_->builder->stream()); }

void Reorder::BackwardData(const Pass&) { impl_->backward.Run(impl_->builder->stream()); }

}  // namespace dtrun::models
