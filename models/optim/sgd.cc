#include "models/optim/sgd.h"

#include "models/optim/update_rules.h"

namespace dtrun::models {

Sgd::Sgd(std::vector<Parameter>& parameters, const SgdOptions& options)
    : parameters_(parameters), options_(options) {
  CheckF32(parameters);
  CheckPositive("learning_rate", options.learning_rate);
  CheckFraction("momentum", options.momentum);
  CheckNotNegative("weight_decay", options.weight_decay);
  if (options.nesterov && options.momentum == 0)
    RefuseArgument("momentum is 0, expected above 0 with nesterov");
}

std::vector<StateSlot> Sgd::slots() const {
  if (options_.momentum == 0) return {};
  return {{"sgd.velocity", DType::kF32}};
}

void Sgd::set_learning_rate(double rate) {
  CheckNotNegative("learning_rate", rate);
  options_.learning_rate = rate;
}

std::optional<MomentumRule> Sgd::momentum_rule() const {
  const double rate = options_.learning_rate, momentum = options_.momentum;
  MomentumRule rule;
  rule.decay = options_.weight_decay;
  if (momentum == 0 || options_.nesterov) rule.by_gradient = -rate;
  if (momentum == 0) return rule;
  rule.keep = momentum;
  rule.take = -rate;
  rule.by_momentum = options_.nesterov ? momentum : 1;
  return rule;
}

void Sgd::StepSlice(const ParameterSlice& slice) {
  const DescentFactors factors{
      .rate = static_cast<float>(options_.learning_rate),
      .momentum = static_cast<float>(options_.momentum),
      .decay = static_cast<float>(options_.weight_decay),
      .nesterov = options_.nesterov};
  const auto* gradient = static_cast<const float*>(slice.gradient);
  auto* value = static_cast<float*>(slice.value);
  if (options_.momentum == 0) {
    Descend(gradient, slice.count, factors, value);
  } else {
    DescendWithMomentum(gradient, slice.count, factors, static_cast<float*>(slice.slots[0]), value);
  }
}

}  // namespace dtrun::models
