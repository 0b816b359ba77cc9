#include "models/optim/schedules.h"

#include <algorithm>
#include <cmath>

#include "models/message_text.h"
#include "models/optim/update_rules.h"

namespace dtrun::models {
namespace {

constexpr double kPi = 3.14159265358979323846;

void CheckSteps(const std::string& name, uint64_t steps) {
  if (steps == 0) RefuseArgument(Text(name, " is 0, expected 1 or more"));
}

// The part of `steps` that is done at `step`, at most 1.
double PartDone(uint64_t step, uint64_t steps) {
  return std::min(1.0, static_cast<double>(step) / static_cast<double>(steps));
}

double HalfCosine(double base, double final, double part_done) {
  return final + (base - final) * (1 + std::cos(kPi * part_done)) / 2;
}

}  // namespace

void ConstantRate::Check() const { CheckNotNegative("base", base); }
double ConstantRate::rate(uint64_t) const { return base; }

void PiecewiseConstantRate::Check() const {
  if (rates.size() != boundaries.size() + 1)
    RefuseArgument(Text(
        "rates has ", rates.size(), " numbers, expected ", boundaries.size() + 1,
        ", one more than boundaries"));
  for (size_t i = 1; i < boundaries.size(); ++i) {
    if (boundaries[i] <= boundaries[i - 1])
      RefuseArgument(Text(
          "boundaries has ", boundaries[i], " after ", boundaries[i - 1],
          ", expected ascending steps"));
  }
  for (const double each : rates) CheckNotNegative("rates", each);
}
double PiecewiseConstantRate::rate(uint64_t step) const {
  const auto passed = std::upper_bound(boundaries.begin(), boundaries.end(), step);
  return rates[static_cast<size_t>(passed - boundaries.begin())];
}

void CosineDecay::Check() const {
  CheckNotNegative("base", base);
  CheckSteps("steps", steps);
  CheckNotNegative("final", final);
}
double CosineDecay::rate(uint64_t step) const {
  return HalfCosine(base, final, PartDone(step, steps));
}

void CosineRestarts::Check() const {
  CosineDecay{base, steps, final}.Check();
  if (!(length_factor >= 1) || std::isinf(length_factor))
    RefuseArgument(Text("length_factor is ", length_factor, ", expected 1 or more"));
  CheckPositive("base_factor", base_factor);
}

// If all decays have the same length, a division counts them, because there may be many.
double CosineRestarts::rate(uint64_t step) const {
  auto length = static_cast<double>(steps), left = static_cast<double>(step);
  double decays = 0;
  if (length_factor == 1) {
    decays = std::floor(left / length);
    left -= decays * length;
  }
  for (; left >= length; ++decays) {
    left -= length;
    length *= length_factor;
  }
  return HalfCosine(base * std::pow(base_factor, decays), final, left / length);
}

void PolynomialDecay::Check() const {
  CosineDecay{base, steps, final}.Check();
  CheckPositive("power", power);
}
double PolynomialDecay::rate(uint64_t step) const {
  return final + (base - final) * std::pow(1 - PartDone(step, steps), power);
}

void ExponentialDecay::Check() const {
  CheckNotNegative("base", base);
  CheckPositive("factor", factor);
  CheckSteps("every", every);
}
double ExponentialDecay::rate(uint64_t step) const {
  const double exponent = static_cast<double>(step) / static_cast<double>(every);
  return base * std::pow(factor, stairs ? std::floor(exponent) : exponent);
}

void Cooldown::Check() const {
  CheckNotNegative("base", base);
  CheckSteps("steps", steps);
  if (!(fraction >= 0 && fraction <= 1))
    RefuseArgument(Text("fraction is ", fraction, ", expected from 0 to 1"));
}
double Cooldown::rate(uint64_t step) const {
  const double length = std::round(static_cast<double>(steps) * fraction);
  const double left = std::max(0.0, static_cast<double>(steps) - static_cast<double>(step));
  return base * std::min(1.0, left / (length + 1));
}

void LinearWarmup::Check() const { CheckNotNegative("start", start); }
double LinearWarmup::rate(uint64_t step) const {
  if (step >= steps) return after.rate(step - steps);
  return start + (after.rate(0) - start) * PartDone(step + 1, steps);
}

double SquareRootScaled(double rate, double factor) { return rate * std::sqrt(factor); }

}  // namespace dtrun::models
