#ifndef DTRUN_MODELS_LAYERS_MAX_POOL2D_H_
#define DTRUN_MODELS_LAYERS_MAX_POOL2D_H_

#include <cstdint>
#include <memory>

#include "models/layers/builder.h"
#include "models/layers/layer.h"
#include "models/layers/window_pool2d.h"

namespace dtrun::models {

/// The largest value of each window, channel by channel. Windows lie side by side, and rows and
/// columns that fill none are left out, unless a Window says otherwise; what lies outside the image
/// is never the largest. The gradient goes to the first of equal values, as in Keras.
class MaxPool2D : public Layer {
 public:
  explicit MaxPool2D(int window = 2);
  ///   MaxPool2D({.size = 3, .stride = 2, .padding = Padding::Same()})
  explicit MaxPool2D(const Window& window);

  std::string kind() const override { return "max_pool2d"; }
  std::string description() const override;
  LayerSettings settings() const override;
  Shape OutputShape(const Shape& input) const override;
  bool keeps_input() const override { return general_ != nullptr; }
  bool computes_in_bf16() const override { return general_ == nullptr; }
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void Forward(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  int window_ = 0;
  std::unique_ptr<WindowPool2D> general_;  // for windows that are not side by side

  int batch_ = 0;
  Tensor *input_ = nullptr, *output_ = nullptr;
  // Which pixel of its window was the largest, in the output's format; kPoolNone where the input's
  // ReLU lets nothing through.
  Memo* winners_ = nullptr;
};

}  // namespace dtrun::models

#endif
