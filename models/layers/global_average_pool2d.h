#ifndef DTRUN_MODELS_LAYERS_GLOBAL_AVERAGE_POOL2D_H_
#define DTRUN_MODELS_LAYERS_GLOBAL_AVERAGE_POOL2D_H_

#include "models/layers/layer.h"

namespace dtrun::models {

/// The mean of each channel over all pixels: (height, width, channels) -> channels.
class GlobalAveragePool2D : public Layer {
 public:
  std::string kind() const override { return "global_average_pool2d"; }
  std::string description() const override { return "global_average_pool2d"; }
  Shape OutputShape(const Shape& input) const override { return {1, 1, input.channels}; }
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void Forward(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  int batch_ = 0;
  Tensor *input_ = nullptr, *output_ = nullptr;
};

}  // namespace dtrun::models

#endif
