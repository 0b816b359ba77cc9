#ifndef DTRUN_MODELS_LAYERS_RESHAPE_H_
#define DTRUN_MODELS_LAYERS_RESHAPE_H_

#include <optional>

#include "models/layers/layer.h"

namespace dtrun::models {

/// The same values, in the order height, width, channels, seen in another shape. Copies nothing.
class Reshape : public Layer {
 public:
  /// To a shape with as many values.
  explicit Reshape(const Shape& shape) : shape_(shape) {}

  std::string kind() const override { return "reshape"; }
  std::string description() const override;
  LayerSettings settings() const override;
  Shape OutputShape(const Shape& input) const override;
  bool needs_plain_input() const override { return true; }
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void Forward(const Pass&) override {}
  void BackwardData(const Pass& pass) override;

 protected:
  Reshape() = default;

 private:
  std::optional<Shape> shape_;  // none: flat

  size_t count_ = 0;  // of a chunk
  Tensor *input_ = nullptr, *output_ = nullptr;
};

/// To 1 x 1 x as many channels as there are values. Dense does that itself.
class Flatten : public Reshape {
 public:
  std::string kind() const override { return "flatten"; }
  std::string description() const override { return "flatten"; }
};

}  // namespace dtrun::models

#endif
