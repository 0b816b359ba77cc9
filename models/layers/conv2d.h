#ifndef DTRUN_MODELS_LAYERS_CONV2D_H_
#define DTRUN_MODELS_LAYERS_CONV2D_H_

#include <memory>

#include "models/layers/layer.h"

namespace dtrun::models {

/// Two-dimensional convolution, stride 1, without padding ("valid"), with bias and, if asked for, a
/// ReLU that costs no pass of its own.
///
///   y(h, w, f) = act(bias(f) + sum over i, j, c of x(h + i, w + j, c) * kernel(i, j, c, f))
///
/// Parameters: kernel (size, size, input channels, filters), bias (filters). Both as in Keras.
class Conv2D : public Layer {
 public:
  Conv2D(int filters, int size, Activation activation = Activation::kNone);
  ~Conv2D() override;
  Conv2D(Conv2D&&) noexcept;

  std::string kind() const override { return "conv2d"; }
  std::string description() const override;
  LayerSettings settings() const override;
  Shape OutputShape(const Shape& input) const override;
  std::vector<ParameterSpec> ParameterSpecs(const Shape& input) const override;
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void PrepareWeights() override;
  void Forward(const Pass& pass) override;
  void BackwardWeights(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  struct Impl;

  int filters_, size_;
  Activation activation_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrun::models

#endif
