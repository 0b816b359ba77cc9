#ifndef DTRUN_MODELS_OPTIM_SCHEDULES_H_
#define DTRUN_MODELS_OPTIM_SCHEDULES_H_

#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtrun::models {

/// The learning rate of each step of a training, from step 0 on: any of the values below, or a type
/// of your own with `double rate(uint64_t step) const` and `void Check() const`, which throws Error
/// kInvalidArgument when it makes no sense.
///
///   Schedule schedule = LinearWarmup{.steps = 100, .after = CosineDecay{.base = 0.1, .steps =
///   900}};
///   optimizer.set_learning_rate(schedule.rate(step));
class Schedule {
 public:
  /// Throws what `value.Check()` throws.
  template <
      typename Value, typename = std::enable_if_t<!std::is_same_v<std::decay_t<Value>, Schedule>>>
  Schedule(Value value) {  // NOLINT: a value is a schedule
    value.Check();
    rate_ = [value = std::move(value)](uint64_t step) { return value.rate(step); };
  }

  double rate(uint64_t step) const { return rate_(step); }

 private:
  std::function<double(uint64_t)> rate_;
};

/// base
struct ConstantRate {
  double base = 1e-3;

  void Check() const;
  double rate(uint64_t step) const;
};

/// rates[i], where i boundaries are at most `step`. Of the latter there is one less, ascending.
///   boundaries {3, 7}, rates {1, 0.1, 0.01}  ->  1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, ...
struct PiecewiseConstantRate {
  std::vector<uint64_t> boundaries;
  std::vector<double> rates;

  void Check() const;
  double rate(uint64_t step) const;
};

/// Half a cosine, I. Loshchilov and F. Hutter, "SGDR", ICLR 2017, equation 5:
///   final + (base - final) * (1 + cos(pi * step / steps)) / 2, from `steps` on final
struct CosineDecay {
  double base = 1e-3;
  uint64_t steps = 0;
  double final = 0;

  void Check() const;
  double rate(uint64_t step) const;
};

/// That again and again, the same paper: the n-th decay, n = 0, 1, ..., takes steps *
/// length_factor^n steps, and its base is base * base_factor^n.
struct CosineRestarts {
  double base = 1e-3;
  uint64_t steps = 0;  ///< of the first decay
  double final = 0;
  double length_factor = 1;  ///< 1 or more
  double base_factor = 1;

  void Check() const;
  double rate(uint64_t step) const;
};

/// final + (base - final) * (1 - step / steps)^power, from `steps` on final. With power 2 that of
/// the LARS paper (Y. You et al., arXiv:1708.03888), with power 1 a straight line.
struct PolynomialDecay {
  double base = 1e-3;
  uint64_t steps = 0;
  double final = 0;
  double power = 1;

  void Check() const;
  double rate(uint64_t step) const;
};

/// base * factor^(step / every); in stairs, the exponent is rounded down.
struct ExponentialDecay {
  double base = 1e-3;
  double factor = 0.9;
  uint64_t every = 1;  ///< steps
  bool stairs = false;

  void Check() const;
  double rate(uint64_t step) const;
};

/// Constant, then over the last `fraction` of `steps` down to almost 0 in a straight line. Training
/// at a constant rate ends wherever its noise has just thrown it; the cooldown lets it settle. A.
/// Haegele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations",
/// NeurIPS 2024.
///   base 1, 8 steps, fraction 0.5  ->  1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2
struct Cooldown {
  double base = 1e-3;
  uint64_t steps = 0;
  double fraction = 0.25;

  void Check() const;
  double rate(uint64_t step) const;
};

/// In a straight line from `start` to the first rate of `after`, which it reaches after `steps`
/// steps, and then `after`. P. Goyal et al., "Accurate, Large Minibatch SGD", arXiv:1706.02677,
/// section 2.2. With start 0 and the first rate R:
///   R / steps, 2 R / steps, ..., R, after.rate(0), after.rate(1), ...
struct LinearWarmup {
  uint64_t steps = 0;
  double start = 0;
  Schedule after = ConstantRate{};

  void Check() const;
  double rate(uint64_t step) const;
};

/// The linear scaling rule (the same paper, section 2.1): with `factor` times the global batch,
/// such as that of so many ranks, the learning rate is so many times as large. For SGD.
inline double LinearlyScaled(double rate, double factor) { return rate * factor; }
/// The square root rule (S. Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
/// Algorithms", NeurIPS 2022). For Adam and its kin.
double SquareRootScaled(double rate, double factor);

}  // namespace dtrun::models

#endif
