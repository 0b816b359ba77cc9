#ifndef DTRUN_BENCH_MOMENTUM_SGD_H_
#define DTRUN_BENCH_MOMENTUM_SGD_H_

#include <dtrun/communicator.h>
#include <dtrun/sliceable_optimizer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "bench/model_shapes.h"

namespace dtrun::bench {

/// SGD with momentum over f32 parameters of given sizes, all zeros at first:
///   m = kMomentum * m + gradient
///   value = value - kRate * m
class MomentumSgd : public SliceableOptimizer {
 public:
  static constexpr float kRate = 0.125f, kMomentum = 0.5f;

  explicit MomentumSgd(const std::vector<Shape>& shapes);

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<StateSlot> slots() const override { return {{"momentum"}}; }
  void StepSlice(const ParameterSlice& slice) override;
  std::optional<MomentumRule> momentum_rule() const override {
    return MomentumRule{.keep = kMomentum, .by_momentum = -kRate};
  }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<Parameter> parameters_;
};

/// Calls `step` twice, from zero and with known gradients. Returns the number of wrong values over
/// all ranks. `step` averages the gradients and applies `sgd`. Collective.
uint64_t WrongAfterTwoSteps(
    Communicator& comm, MomentumSgd& sgd, const std::function<void()>& step);

}  // namespace dtrun::bench

#endif
