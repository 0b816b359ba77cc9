#include "models/optim/lars.h"

#include "models/optim/update_rules.h"

namespace dtrun::models {

Lars::Lars(std::vector<Parameter>& parameters, const LarsOptions& options)
    : parameters_(parameters), options_(options) {
  CheckF32(parameters);
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

// The ratio rides along with the learning rate.
void Lars::StepSlice(const ParameterSlice& slice) {
  const size_t i = slice.parameter;
  const DescentFactors factors{
      .rate = static_cast<float>(options_.learning_rate * ratio_[i]),
      .momentum = static_cast<float>(options_.momentum),
      .decay = static_cast<float>(excluded_[i] ? 0 : options_.weight_decay),
      .nesterov = options_.nesterov};
  DescendWithMomentum(
      static_cast<const float*>(slice.gradient), slice.count, factors,
      static_cast<float*>(slice.slots[0]), static_cast<float*>(slice.value));
}

}  // namespace dtrun::models
