#ifndef DTRUN_MODELS_LAYERS_RESIDUAL_H_
#define DTRUN_MODELS_LAYERS_RESIDUAL_H_

#include <memory>
#include <vector>

#include "models/layers/layer.h"

namespace dtrun::models {

/// Adds the outputs of two paths from one input: y = act(main(x) + shortcut(x)). An empty shortcut
/// is the input itself. K. He et al., "Deep residual learning for image recognition", CVPR 2016.
///
///   Residual(
///       Layers(Conv2D(64, 3, {.padding = Padding::Same()}), BatchNorm({.activation = kRelu}),
///              Conv2D(64, 3, {.padding = Padding::Same()}), BatchNorm()),
///       Layers(Conv2D(64, 1), BatchNorm()), Activation::kRelu)
///
/// Parameters: first of the main path, then of the shortcut, with names like "main0.conv2d.kernel".
/// Their gradients are complete after the backward pass of the whole block. The first and the last
/// layer of a path must not work in place (Relu, Dropout).
class Residual : public Layer {
 public:
  explicit Residual(
      std::vector<std::unique_ptr<Layer>> main, std::vector<std::unique_ptr<Layer>> shortcut = {},
      Activation activation = Activation::kRelu);
  ~Residual() override;
  Residual(Residual&&) noexcept;

  std::string kind() const override { return "residual"; }
  std::string description() const override;
  LayerSettings settings() const override;
  Shape OutputShape(const Shape& input) const override;
  std::vector<ParameterSpec> ParameterSpecs(const Shape& input) const override;
  std::vector<ParameterSpec> BufferSpecs(const Shape& input) const override;
  bool takes_chunks() const override { return true; }
  bool needs_whole_share() const override;
  bool synchronizes() const override;
  size_t Describe(NetworkGraph& graph, size_t input) const override;
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void PrepareWeights() override;
  void Forward(const Pass& pass) override;
  void BackwardWeights(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  struct Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrun::models

#endif
