#include "models/optim/adam.h"

#include <cmath>

#include "models/optim/checks.h"
#include "models/optim/update_kernels.h"

namespace dtrun::models {

Adam::Adam(std::vector<Parameter>& parameters, const AdamOptions& options)
    : parameters_(parameters), options_(options) {
  CheckF32(parameters);
  CheckPositive("learning_rate", options.learning_rate);
  CheckFraction("beta1", options.beta1);
  CheckFraction("beta2", options.beta2);
  CheckPositive("epsilon", options.epsilon);
  m_.resize(TotalCount(parameters));
  v_.resize(m_.size());
}

std::vector<NamedBuffer> Adam::state() {
  return {
      {"adam.m", Buffer(m_.data(), m_.size())},
      {"adam.v", Buffer(v_.data(), v_.size())},
      {"adam.step", Buffer(&step_, 1)}};
}

void Adam::Step() {
  ++step_;
  const auto t = static_cast<double>(step_);
  AdamFactors factors;
  factors.rate = static_cast<float>(
      options_.learning_rate * std::sqrt(1 - std::pow(options_.beta2, t)) /
      (1 - std::pow(options_.beta1, t)));
  factors.m_share = static_cast<float>(1 - options_.beta1);
  factors.v_share = static_cast<float>(1 - options_.beta2);
  factors.epsilon = static_cast<float>(options_.epsilon);

  size_t done = 0;
  for (const Parameter& parameter : parameters_) {
    if (parameter.has_gradient)
      UpdateAdam(
          static_cast<const float*>(parameter.gradient.data), parameter.value.count, factors,
          m_.data() + done, v_.data() + done, static_cast<float*>(parameter.value.data));
    done += parameter.value.count;
  }
}

}  // namespace dtrun::models
