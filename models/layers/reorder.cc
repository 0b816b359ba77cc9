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
  const int block = builder.plain_output ? input->shape.channels : input->block;
  Tensor* output = builder.NewTensor(input->shape, block, input->relu);
  impl_ = std::make_unique<Impl>(Impl{&builder, input, output, {}, {}});
  impl_->forward = BoundReorder(builder.DataOf(*input), builder.DataOf(*output));
  return output;
}

void Reorder::BuildBackward(Builder& builder, bool input_gradient) {
  if (!input_gradient) return;
  Tensor &input = *impl_->input, &output = *impl_->output;
  builder.GiveGradient(&input);
  impl_->backward = BoundReorder(builder.GradientOf(output), builder.GradientOf(input));
}

void Reorder::Forward(const Pass&) { impl_->forward.Run(impl_->builder->stream()); }

void Reorder::BackwardData(const Pass&) { impl_->backward.Run(impl_->builder->stream()); }

}  // namespace dtrun::models
