#ifndef DTRUN_MODELS_LAYERS_RESIDUAL_H_
#define DTRUN_MODELS_LAYERS_RESIDUAL_H_

#include <memory>
#include <vector>

#include "models/layers/layer.h"

namespace dtrun::models {

/// Two paths from one input, whose outputs are added: y = act(main(x) + shortcut(x)). An empty
/// shortcut is the input itself. K. He et al., "Deep residual learning for image recognition", CVPR
/// 2016.
///
///   Residual(
///       Layers(Conv2D(64, 3, {.padding = Padding::Same()}), BatchNorm({.activation = kRelu}),
///              Conv2D(64, 3, {.padding = Padding::Same()}), BatchNorm()),
///       Layers(Conv2D(64, 1), BatchNorm()), Activation::kRelu)
///
/// Parameters: those of the main path, then those of the shortcut; "main0.conv2d.kernel". Their
/// gradients are complete when the whole block has gone its way back. Paths neither begin nor end
/// with a layer that works in place (Relu, Dropout).
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
