#include "models/optim/lamb.h"

#include <cmath>

#include "models/optim/update_rules.h"

namespace dtrun::models {

Lamb::Lamb(std::vector<Parameter>& parameters, const LambOptions& options)
    : parameters_(parameters), options_(options), m_(parameters), v_(parameters) {
  CheckF32(parameters);
  CheckPositive("learning_rate", options.learning_rate);
  CheckFraction("beta1", options.beta1);
  CheckFraction("beta2", options.beta2);
  CheckPositive("epsilon", options.epsilon);
  CheckNotNegative("weight_decay", options.weight_decay);
  for (const Parameter& parameter : parameters)
    excluded_.push_back(EndsWithOneOf(parameter.name, options.excluded));
}

std::vector<NamedBuffer> Lamb::state() {
  std::vector<NamedBuffer> state;
  m_.AppendTo(state, "lamb.m", parameters_);
  v_.AppendTo(state, "lamb.v", parameters_);
  state.push_back({"lamb.step", Buffer(&step_, 1)});
  return state;
}

void Lamb::set_learning_rate(double rate) {
  CheckNotNegative("learning_rate", rate);
  options_.learning_rate = rate;
}

void Lamb::Step() {
  const auto t = static_cast<double>(++step_);
  LambFactors factors;
  factors.m_share = static_cast<float>(1 - options_.beta1);
  factors.v_share = static_cast<float>(1 - options_.beta2);
  factors.m_correction = static_cast<float>(1 / (1 - std::pow(options_.beta1, t)));
  factors.v_correction = static_cast<float>(1 / (1 - std::pow(options_.beta2, t)));
  factors.epsilon = static_cast<float>(options_.epsilon);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (!parameter.has_gradient) continue;
    factors.decay = static_cast<float>(excluded_[i] ? 0 : options_.weight_decay);
    const size_t count = parameter.value.count;
    auto* value = static_cast<float*>(parameter.value.data);
    const SquaredNorms squares = UpdateLambMoments(
        static_cast<const float*>(parameter.gradient.data), count, factors, m_.of(i), v_.of(i),
        value);
    const bool adapts = !excluded_[i] && squares.update > 0 && squares.value > 0;
    const double ratio = adapts ? std::sqrt(squares.value / squares.update) : 1;
    ApplyLamb(
        m_.of(i), v_.of(i), count, factors, static_cast<float>(options_.learning_rate * ratio),
        value);
  }
}

}  // namespace dtrun::models
