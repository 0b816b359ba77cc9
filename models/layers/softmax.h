#ifndef DTRUN_MODELS_LAYERS_SOFTMAX_H_
#define DTRUN_MODELS_LAYERS_SOFTMAX_H_

#include "models/layers/plain_layer.h"

namespace dtrun::models {

/// Over the channels of each pixel: y(k) = exp(x(k)) / sum over j of exp(x(j)). For outputs that
/// are probabilities; a loss that takes logits has it inside, and is more exact.
class Softmax : public PlainLayer {
 public:
  std::string kind() const override { return "softmax"; }
  Shape OutputShape(const Shape& input) const override { return input; }

 protected:
  void Compute(const Pass& pass, const float* x, float* y) override;
  void ComputeGradients(
      const Pass& pass, const float* x, const float* y_gradient, float* x_gradient) override;
};

}  // namespace dtrun::models

#endif
