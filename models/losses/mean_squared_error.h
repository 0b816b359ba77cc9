#ifndef DTRUN_MODELS_LOSSES_MEAN_SQUARED_ERROR_H_
#define DTRUN_MODELS_LOSSES_MEAN_SQUARED_ERROR_H_

#include <string>

#include "models/losses/loss.h"

namespace dtrun::models {

/// loss = mean over k of (output(k) - target(k))^2, the mean over an example's own outputs. Targets
/// are values; labels stand for 1 at the label and 0 elsewhere.
class MeanSquaredError : public Loss {
 public:
  std::string name() const override { return "mean_squared_error"; }
  void PerExample(
      const Outputs& outputs, const Targets& targets, std::span<double> losses) const override;
  void Gradient(
      const Outputs& outputs, const Targets& targets, std::span<const float> factors,
      float* gradient) const override;
};

}  // namespace dtrun::models

#endif
