#include <cmath>

#include "models/message_text.h"
#include "models/optim/adam.h"
#include "models/optim/lamb.h"
#include "models/optim/lars.h"
#include "models/optim/sgd.h"
#include "models/optim/update_rules.h"

namespace dtrun::models {

Adam::Adam(std::vector<Parameter>& parameters, const AdamOptions& options, UpdateDevice& device)
    : Adam(parameters, options, 0, {}, device) {}

Adam::Adam(
    std::vector<Parameter>& parameters, const AdamOptions& options, double weight_decay,
    const LastWords& not_decayed, UpdateDevice& device)
    : PlacedOptimizer(device), parameters_(parameters), options_(options) {
  CheckParameters(parameters, device);
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
  device().Adam(
      static_cast<const float*>(slice.gradient), slice.count, factors,
      static_cast<float*>(slice.slots[0]), static_cast<float*>(slice.slots[1]),
      static_cast<float*>(slice.value));
}

Lamb::Lamb(std::vector<Parameter>& parameters, const LambOptions& options, UpdateDevice& device)
    : parameters_(parameters),
      options_(options),
      device_(device),
      m_(parameters, device),
      v_(parameters, device) {
  CheckParameters(parameters, device);
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
    device_.Lamb(
        static_cast<const float*>(parameter.gradient.data), parameter.value.count, factors,
        options_.learning_rate, !excluded_[i], m_.of(i), v_.of(i),
        static_cast<float*>(parameter.value.data));
  }
}

Lars::Lars(std::vector<Parameter>& parameters, const LarsOptions& options, UpdateDevice& device)
    : PlacedOptimizer(device), parameters_(parameters), options_(options) {
  CheckParameters(parameters, device);
  CheckPositive("learning_rate", options.learning_rate);
  CheckFraction("momentum", options.momentum);
  CheckNotNegative("weight_decay", options.weight_decay);
  CheckPositive("trust_coefficient", options.trust_coefficient);
  if (options.nesterov && options.momentum == 0)
    RefuseArgument("momentum is 0, expected above 0 with nesterov");
  for (const Parameter& parameter : parameters)
    excluded_.push_back(EndsWithOneOf(parameter.name, options.excluded));
  ratio_.assign(parameters.size(), 1);
}

void Lars::set_learning_rate(double rate) {
  CheckNotNegative("learning_rate", rate);
  options_.learning_rate = rate;
}

void Lars::SetNorms(const std::vector<ParameterNorms>& norms) {
  for (size_t i = 0; i < norms.size(); ++i) {
    const auto [gradient, value] = norms[i];
    ratio_[i] =
        excluded_[i] || gradient == 0 || value == 0
            ? 1
            : options_.trust_coefficient * value / (gradient + options_.weight_decay * value);
  }
}

// The rate passed to the kernel includes the ratio.
void Lars::StepSlice(const ParameterSlice& slice) {
  const size_t i = slice.parameter;
  const DescentFactors factors{
      .rate = static_cast<float>(options_.learning_rate * ratio_[i]),
      .momentum = static_cast<float>(options_.momentum),
      .decay = static_cast<float>(excluded_[i] ? 0 : options_.weight_decay),
      .nesterov = options_.nesterov};
  device().Descend(
      static_cast<const float*>(slice.gradient), slice.count, factors,
      static_cast<float*>(slice.slots[0]), static_cast<float*>(slice.value));
}

Sgd::Sgd(std::vector<Parameter>& parameters, const SgdOptions& options, UpdateDevice& device)
    : PlacedOptimizer(device), parameters_(parameters), options_(options) {
  CheckParameters(parameters, device);
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
  device().Descend(
      static_cast<const float*>(slice.gradient), slice.count, factors,
      options_.momentum == 0 ? nullptr : static_cast<float*>(slice.slots[0]),
      static_cast<float*>(slice.value));
}

}  // namespace dtrun::models
