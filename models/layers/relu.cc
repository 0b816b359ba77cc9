#include "models/layers/relu.h"

#include "models/layers/builder.h"
#include "models/layers/for_each_example.h"
#include "models/layers/kernels.h"

namespace dtrun::models {

// From here on the tensor has a ReLU: whoever writes its gradient applies it.
Tensor* Relu::BuildForward(Builder& builder, Tensor* input) {
  batch_ = builder.batch();
  tensor_ = input;
  tensor_->relu = true;
  return tensor_;
}

void Relu::Forward(const Pass&) {
  const size_t stride = tensor_->stride();
  ForEachExample(batch_, [&](size_t i) { ApplyRelu(stride, tensor_->data + i * stride); });
}

}  // namespace dtrun::models
