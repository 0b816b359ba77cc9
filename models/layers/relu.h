#ifndef DTRUN_MODELS_LAYERS_RELU_H_
#define DTRUN_MODELS_LAYERS_RELU_H_

#include "models/layers/layer.h"

namespace dtrun::models {

/// y = max(0, x). Cheaper as Activation::kRelu of the layer before, where that has one.
class Relu : public Layer {
 public:
  std::string kind() const override { return "relu"; }
  std::string description() const override { return "relu"; }
  Shape OutputShape(const Shape& input) const override { return input; }
  bool in_place() const override { return true; }
  bool keeps_input() const override { return false; }
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder&, bool) override {}
  void Forward(const Pass& pass) override;
  void BackwardData(const Pass&) override {}

 private:
  int batch_ = 0;
  Tensor* tensor_ = nullptr;
};

}  // namespace dtrun::models

#endif
