#ifndef DTRUN_MODELS_LAYERS_WINDOW_POOL2D_H_
#define DTRUN_MODELS_LAYERS_WINDOW_POOL2D_H_

#include <memory>

#include "models/layers/layer.h"
#include "models/layers/window.h"

namespace dtrun::models {

/// Pooling over windows of any stride and padding, by oneDNN's primitives. Padding takes no part in
/// maximum or mean.
class WindowPool2D : public Layer {
 public:
  enum class Operation { kMax, kAverage };

  WindowPool2D(Operation operation, const Window& window);
  ~WindowPool2D() override;
  WindowPool2D(WindowPool2D&&) noexcept;

  std::string kind() const override;
  std::string description() const override;
  LayerSettings settings() const override;
  Shape OutputShape(const Shape& input) const override;
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void Forward(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  struct Impl;

  Operation operation_;
  Window window_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrun::models

#endif
