#include "models/optim/learning_rate.h"

#include <algorithm>
#include <cmath>

namespace dtrun::models {

double LearningRateAt(double base, uint64_t step, uint64_t steps, double cooldown) {
  const double length = std::round(static_cast<double>(steps) * cooldown);
  const double left = static_cast<double>(steps) - static_cast<double>(step);
  return base * std::min(1.0, left / (length + 1));
}

}  // namespace dtrun::models
