#ifndef DTRUN_MODELS_OPTIM_SCHEDULES_H_
#define DTRUN_MODELS_OPTIM_SCHEDULES_H_

#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtrun::models {

/// The learning rate of each step of a training, from step 0 on. A schedule holds one of the
/// structs below, or your own type with `double rate(uint64_t step) const` and `void Check()
/// const`. Check throws Error kInvalidArgument if a member is invalid.
///
///   Schedule schedule =
///       LinearWarmup{.steps = 100, .after = CosineDecay{.base = 0.1, .steps = 900}};
///   optimizer.set_learning_rate(schedule.rate(step));
class Schedule {
 public:
  /// Throws the errors of `value.Check()`.
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

/// The rate is always base.
struct ConstantRate {
  double base = 1e-3;

  void Check() const;
  double rate(uint64_t step) const;
};

/// The rate is rates[i] if i of the boundaries are at most `step`. The boundaries ascend, and there
/// is one boundary less than rates.
///   boundaries {3, 7}, rates {1, 0.1, 0.01}  ->  1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, ...
struct PiecewiseConstantRate {
  std::vector<uint64_t> boundaries;
  std::vector<double> rates;

  void Check() const;
  double rate(uint64_t step) const;
};

/// Half a cosine: I. Loshchilov and F. Hutter, "SGDR", ICLR 2017, equation 5. From `steps` on, the
/// rate is final.
///   final + (base - final) * (1 + cos(pi * step / steps)) / 2
struct CosineDecay {
  double base = 1e-3;
  uint64_t steps = 0;
  double final = 0;

  void Check() const;
  double rate(uint64_t step) const;
};

/// CosineDecay with restarts, from the same paper. Decay n = 0, 1, ... takes steps *
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

/// final + (base - final) * (1 - step / steps)^power. From `steps` on, the rate is final. Power 2
/// is the schedule of the LARS paper (Y. You et al., arXiv:1708.03888), power 1 is a straight line.
struct PolynomialDecay {
  double base = 1e-3;
  uint64_t steps = 0;
  double final = 0;
  double power = 1;

  void Check() const;
  double rate(uint64_t step) const;
};

/// base * factor^(step / every). If `stairs` is set, the exponent is rounded down.
struct ExponentialDecay {
  double base = 1e-3;
  double factor = 0.9;
  uint64_t every = 1;  ///< steps
  bool stairs = false;

  void Check() const;
  double rate(uint64_t step) const;
};

/// Constant, then a straight line to almost 0 over the last `fraction` of `steps`. At a constant
/// rate, the final weights depend on the noise of the last steps. The cooldown lets the weights
/// settle. A. Haegele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training
/// Durations", NeurIPS 2024.
///   base 1, 8 steps, fraction 0.5  ->  1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2
struct Cooldown {
  double base = 1e-3;
  uint64_t steps = 0;
  double fraction = 0.25;

  void Check() const;
  double rate(uint64_t step) const;
};

/// A straight line from `start` to the first rate of `after`, then `after`. The last of `steps`
/// warm-up steps has this first rate. P. Goyal et al., "Accurate, Large Minibatch SGD",
/// arXiv:1706.02677, section 2.2. With start 0 and the first rate R:
///   R / steps, 2 R / steps, ..., R, after.rate(0), after.rate(1), ...
struct LinearWarmup {
  uint64_t steps = 0;
  double start = 0;
  Schedule after = ConstantRate{};

  void Check() const;
  double rate(uint64_t step) const;
};

/// The linear scaling rule, for SGD (the same paper, section 2.1). If more ranks make the global
/// batch `factor` times as large, the rule multiplies the learning rate by `factor`.
inline double LinearlyScaled(double rate, double factor) { return rate * factor; }
/// The square root rule, for Adam and similar optimizers: S. Malladi et al., "On the SDEs and
/// Scaling Rules for Adaptive Gradient Algorithms", NeurIPS 2022.
double SquareRootScaled(double rate, double factor);

}  // namespace dtrun::models

#endif
