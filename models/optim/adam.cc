#include "models/optim/adam.h"

#include <cmath>

#include "models/optim/update_rules.h"

namespace dtrun::models {

Adam::Adam(std::vector<Parameter>& parameters, const AdamOptions& options)
    : Adam(parameters, options, 0, {}) {}

Adam::Adam(
    std::vector<Parameter>& parameters, const AdamOptions& options, double weight_decay,
    const LastWords& not_decayed)
    : parameters_(parameters), options_(options) {
  CheckF32(parameters);
  CheckPositive("learning_rate", options.learning_rate);
  CheckFraction("beta1", options.beta1);
  CheckFraction("beta2", options.beta2);
  CheckPositive("epsilon", options.epsilon);
  CheckNotNegative("weight_decay", weight_decay);
  for (const Parameter& parameter : parameters)
    decay_.push_back(EndsWithOneOf(parameter.name, not_decayed) ? 0 : weight_decay);
}

std::vector<StateSlot> Adam::slots() const {
  return {{"adam.m", DType::kF32}, {"adam.v", DType::kF32}};
}

void Adam::set_learning_rate(double rate) {
  CheckNotNegative("learning_rate", rate);
  options_.learning_rate = rate;
}

void Adam::BeginStep() {
  const auto t = static_cast<double>(++step_);
  rate_ = options_.learning_rate * std::sqrt(1 - std::pow(options_.beta2, t)) /
          (1 - std::pow(options_.beta1, t));
}

void Adam::StepSlice(const ParameterSlice& slice) {
  AdamFactors factors;
  factors.rate = static_cast<float>(rate_);
  factors.m_share = static_cast<float>(1 - options_.beta1);
  factors.v_share = static_cast<float>(1 - options_.beta2);
  factors.epsilon = static_cast<float>(options_.epsilon);
  factors.decay = static_cast<float>(options_.learning_rate * decay_[slice.parameter]);
  UpdateAdam(
      static_cast<const float*>(slice.gradient), slice.count, factors,
      static_cast<float*>(slice.slots[0]), static_cast<float*>(slice.slots[1]),
      static_cast<float*>(slice.value));
}

}  // namespace dtrun::models
