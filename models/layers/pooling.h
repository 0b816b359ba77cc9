#ifndef DTRUN_MODELS_LAYERS_POOLING_H_
#define DTRUN_MODELS_LAYERS_POOLING_H_

#include <cstdint>
#include <memory>

#include "models/layers/layer.h"
#include "models/layers/settings.h"

namespace dtrun::models {

struct Memo;

/// Pooling over windows of any stride and padding, with oneDNN's primitives. Padding does not count
/// in the maximum or the mean.
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
  size_t Describe(NetworkGraph& graph, size_t input) const override;
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

/// The maximum of each window, per channel. By default, windows lie side by side, and rows and
/// columns that fill no window are ignored. A Window sets another stride and padding. Padding is
/// never the maximum. The gradient goes to the first of equal values, as in Keras.
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
  size_t Describe(NetworkGraph& graph, size_t input) const override;
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void Forward(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  int window_ = 0;
  std::unique_ptr<WindowPool2D> general_;  // for windows that are not side by side

  int batch_ = 0;
  Tensor *input_ = nullptr, *output_ = nullptr;
  // The position of the maximum in its window, in the format of the output. kPoolNone: the ReLU of
  // the input clips all values of the window.
  Memo* winners_ = nullptr;
};

/// The mean of each window, per channel, over the pixels inside the image.
class AveragePool2D : public WindowPool2D {
 public:
  /// Windows side by side.
  explicit AveragePool2D(int size = 2) : AveragePool2D(Window{size, size}) {}
  explicit AveragePool2D(const Window& window) : WindowPool2D(Operation::kAverage, window) {}
};

/// The mean of each channel over all pixels: (height, width, channels) -> channels.
class GlobalAveragePool2D : public Layer {
 public:
  std::string kind() const override { return "global_average_pool2d"; }
  std::string description() const override { return "global_average_pool2d"; }
  Shape OutputShape(const Shape& input) const override { return {1, 1, input.channels}; }
  size_t Describe(NetworkGraph& graph, size_t input) const override;
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void Forward(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  int batch_ = 0;
  Tensor *input_ = nullptr, *output_ = nullptr;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_POOLING_H_
