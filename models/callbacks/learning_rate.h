#ifndef DTRUN_MODELS_CALLBACKS_LEARNING_RATE_H_
#define DTRUN_MODELS_CALLBACKS_LEARNING_RATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "models/callbacks/callback.h"
#include "models/callbacks/log_values.h"

namespace dtrun::models {

/// At the beginning of each epoch: the learning rate becomes schedule(epoch, rate so far), epochs
/// counted from 0. A schedule that returns no positive number ends training with an error.
class LearningRateScheduler : public Callback {
 public:
  using Schedule = std::function<double(uint64_t epoch, double rate)>;

  /// With `print`, rank 0 says each epoch's rate.
  explicit LearningRateScheduler(Schedule schedule, Print print = {})
      : schedule_(std::move(schedule)), print_(std::move(print)) {}
  std::string name() const override { return "LearningRateScheduler"; }
  void OnEpochBegin(Run& run) override;

 private:
  Schedule schedule_;
  Print print_;
};

/// Before each batch: the learning rate becomes schedule(step), steps of all epochs counted from 0.
class StepSchedule : public Callback {
 public:
  using Schedule = std::function<double(uint64_t step)>;

  explicit StepSchedule(Schedule schedule) : schedule_(std::move(schedule)) {}
  std::string name() const override { return "StepSchedule"; }
  void OnBatchBegin(Run& run) override;

 private:
  Schedule schedule_;
};

struct WarmupOptions {
  double base_rate = 1e-3;  ///< what is right for one rank alone
  uint64_t epochs = 5;      ///< that it lasts
  double factor = 0;        ///< from base_rate to factor times it; 0: the number of ranks
};

/// The linear scaling rule with a gradual warm-up: N ranks take a global batch N times as large, so
/// N times the rate; but not from the start, when weights change fast. Over the first `epochs` the
/// rate grows in a straight line, batch by batch:
///   rate = base_rate * (1 + (factor - 1) * (epoch + batch / steps) / epochs)
/// and is left to others afterwards. P. Goyal et al., "Accurate, Large Minibatch SGD: Training
/// ImageNet in 1 Hour", 2017, sections 2.1 and 2.2.
class LearningRateWarmup : public Callback {
 public:
  /// Throws Error kInvalidArgument when base_rate is not above 0, epochs is 0 or factor is below 0.
  explicit LearningRateWarmup(const WarmupOptions& options);
  std::string name() const override { return "LearningRateWarmup"; }
  void OnBatchBegin(Run& run) override;

 private:
  WarmupOptions options_;
};

/// At the end of each epoch rank 0 prints the learning rate: "Learning rate for epoch 1 is 0.001".
class PrintLearningRate : public Callback {
 public:
  explicit PrintLearningRate(Print print = PrintLine) : print_(std::move(print)) {}
  std::string name() const override { return "PrintLearningRate"; }
  void OnEpochEnd(Run& run, Logs& logs) override;

 private:
  Print print_;
};

}  // namespace dtrun::models

#endif
