#include "models/optim/sgd.h"

#include "models/optim/checks.h"
#include "models/optim/update_kernels.h"

namespace dtrun::models {

Sgd::Sgd(std::vector<Parameter>& parameters, const SgdOptions& options)
    : parameters_(parameters), options_(options) {
  CheckF32(parameters);
  CheckPositive("learning_rate", options.learning_rate);
  CheckFraction("momentum", options.momentum);
  if (options.momentum != 0) velocity_.resize(TotalCount(parameters));
}

std::vector<NamedBuffer> Sgd::state() {
  if (velocity_.empty()) return {};
  return {{"sgd.velocity", Buffer(velocity_.data(), velocity_.size())}};
}

void Sgd::Step() {
  const auto rate = static_cast<float>(options_.learning_rate);
  const auto momentum = static_cast<float>(options_.momentum);
  size_t done = 0;
  for (const Parameter& parameter : parameters_) {
    auto* value = static_cast<float*>(parameter.value.data);
    const auto* gradient = static_cast<const float*>(parameter.gradient.data);
    const size_t count = parameter.value.count;
    if (parameter.has_gradient && velocity_.empty()) {
      Descend(gradient, count, rate, value);
    } else if (parameter.has_gradient) {
      DescendWithMomentum(gradient, count, rate, momentum, velocity_.data() + done, value);
    }
    done += count;
  }
}

}  // namespace dtrun::models
