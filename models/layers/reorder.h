#ifndef DTRUN_MODELS_LAYERS_REORDER_H_
#define DTRUN_MODELS_LAYERS_REORDER_H_

#include <memory>

#include "models/layers/layer.h"

namespace dtrun::models {

/// Brings its input into the plain format. Sequential puts one where a layer needs that and the one
/// before it gives another: after a convolution without pooling.
class Reorder : public Layer {
 public:
  Reorder();
  ~Reorder() override;

  std::string kind() const override { return "reorder"; }
  std::string description() const override { return "reorder"; }
  Shape OutputShape(const Shape& input) const override { return input; }
  bool keeps_input() const override { return false; }
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void Forward(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrun::models

#endif
