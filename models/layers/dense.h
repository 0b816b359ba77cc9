#ifndef DTRUN_MODELS_LAYERS_DENSE_H_
#define DTRUN_MODELS_LAYERS_DENSE_H_

#include <memory>

#include "models/layers/layer.h"

namespace dtrun::models {

struct DenseOptions {
  Activation activation = Activation::kNone;
  double kernel_l2 = 0;  ///< regulariser, see ParameterSpec
};

/// Fully connected layer: y(u) = act(bias(u) + sum over i of x(i) * kernel(i, u)). x is the input,
/// flattened in the order height, width, channels.
///
/// Parameters, as in Keras: kernel (inputs, units), bias (units).
class Dense : public Layer {
 public:
  explicit Dense(int units, Activation activation = Activation::kNone);
  Dense(int units, const DenseOptions& options);
  ~Dense() override;
  Dense(Dense&&) noexcept;

  std::string kind() const override { return "dense"; }
  std::string description() const override;
  LayerSettings settings() const override;
  Shape OutputShape(const Shape&) const override;
  std::vector<ParameterSpec> ParameterSpecs(const Shape& input) const override;
  bool needs_plain_input() const override { return true; }
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

  int units_;
  Activation activation_;
  double kernel_l2_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrun::models

#endif
