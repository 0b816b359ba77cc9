#ifndef DTRUN_MODELS_LAYERS_CONV2D_H_
#define DTRUN_MODELS_LAYERS_CONV2D_H_

#include <memory>

#include "models/layers/layer.h"
#include "models/layers/settings.h"

namespace dtrun::models {

struct Conv2DOptions {
  int stride = 1;
  Padding padding = Padding::Valid();
  Activation activation = Activation::kNone;
  bool use_bias = true;
  Initializer kernel_initializer = Initializer::kGlorotUniform;
  double kernel_l2 = 0;  ///< regulariser, see ParameterSpec
};

/// Two-dimensional convolution with square kernels and an optional ReLU. oneDNN's convolution
/// applies the ReLU, unless a separate pass is estimated to be cheaper. With stride s and `before`
/// pixels of padding above and to the left:
///
///   y(h, w, f) = act(bias(f) + sum over i, j, c of
///                    x(s * h + i - before, s * w + j - before, c) * kernel(i, j, c, f))
///
/// Parameters, as in Keras: kernel (size, size, input channels, filters), bias (filters).
class Conv2D : public Layer {
 public:
  /// Stride 1, without padding, with bias.
  Conv2D(int filters, int size, Activation activation = Activation::kNone);
  Conv2D(int filters, int size, const Conv2DOptions& options);
  ~Conv2D() override;
  Conv2D(Conv2D&&) noexcept;

  std::string kind() const override { return "conv2d"; }
  std::string description() const override;
  LayerSettings settings() const override;
  Shape OutputShape(const Shape& input) const override;
  std::vector<ParameterSpec> ParameterSpecs(const Shape& input) const override;
  bool computes_in_bf16() const override { return true; }
  size_t Describe(NetworkGraph& graph, size_t input) const override;
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void PrepareWeights() override;
  void Forward(const Pass& pass) override;
  void BackwardWeights(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  struct Impl;

  int filters_;
  Window window_;
  Activation activation_;
  bool use_bias_;
  Initializer initializer_;
  double kernel_l2_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrun::models

#endif
