#ifndef DTRUN_MODELS_CALLBACKS_CALLBACKS_H_
#define DTRUN_MODELS_CALLBACKS_CALLBACKS_H_

#include <dtrun/context.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "models/callbacks/callback.h"
#include "models/callbacks/log_values.h"

namespace dtrun::models {

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  MonitorMode mode = MonitorMode::kAuto;
  double min_delta = 0;           ///< a change of no more than this is no improvement
  uint64_t patience = 0;          ///< epochs without improvement after which it is enough; 0 and 1
                                  ///< both mean the first one
  uint64_t start_from_epoch = 0;  ///< epochs before it do not count
  bool restore_best_weights = false;  ///< at the end: parameters and buffers of the best epoch
  Print print = {};                   ///< says why training ended
};

/// Ends training when a number has stopped to get better.
class EarlyStopping : public Callback {
 public:
  /// Throws what Monitor throws.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  std::string name() const override { return "EarlyStopping"; }
  void OnTrainBegin(Run& run) override;
  void OnEpochEnd(Run& run, Logs& logs) override;
  void OnTrainEnd(Run& run, const Logs& logs) override;

  /// Of the epoch, from 0, with the best value so far.
  uint64_t best_epoch() const { return best_epoch_; }

 private:
  EarlyStoppingOptions options_;
  Monitor monitor_;
  double best_ = 0;
  uint64_t best_epoch_ = 0, waited_ = 0;
  std::vector<float> best_weights_;
};

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

/// How fast it goes. Adds to an epoch's logs: "seconds", from the first to the last batch, without
/// validation, rank 0's; "images_per_s", of all ranks together in that time; "exposed_share", the
/// part of it in which ranks exchanged gradients, or waited for others to, and did not compute (a
/// fraction, the ranks' mean). All ranks begin an epoch together.
class Throughput : public Callback {
 public:
  std::string name() const override { return "Throughput"; }
  void OnEpochBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnEpochEnd(Run& run, Logs& logs) override;

 private:
  std::chrono::steady_clock::time_point start_;
  uint64_t examples_ = 0;  // of all ranks
  double seconds_ = 0, exposed_before_ = 0, exposed_ = 0;
};

/// Keeps the loss of every global batch, the same on all ranks.
class StepLosses : public Callback {
 public:
  /// `losses` are appended to at the end of each epoch, and outlive it.
  explicit StepLosses(std::vector<double>& losses) : losses_(losses) {}
  std::string name() const override { return "StepLosses"; }
  void OnEpochBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnEpochEnd(Run& run, Logs& logs) override;

 private:
  std::vector<double>& losses_;
  std::vector<double> of_epoch_;  // this rank's parts
};

struct TimelineOptions {
  std::string path = "timeline.json";
  uint64_t first_step = 1;  ///< of all epochs, from 0; the very first one is like no other
  uint64_t steps = 10;
};

/// Writes what all ranks do in some steps into one file for Chrome or Perfetto: see
/// Context::StartTimeline. Training that ends before it, ends the timeline.
class Timeline : public Callback {
 public:
  /// Throws Error kInvalidArgument when path is empty or steps is 0. `job` outlives it.
  Timeline(Context& job, TimelineOptions options);

  std::string name() const override { return "Timeline"; }
  void OnBatchBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnTrainEnd(Run& run, const Logs& logs) override;

 private:
  void Stop();

  Context& job_;
  TimelineOptions options_;
  bool runs_ = false;
};

/// Tells the launcher how far this rank has come, for `dtrun --progress`.
class ReportProgress : public Callback {
 public:
  /// `job` outlives it.
  explicit ReportProgress(Context& job) : job_(job) {}
  std::string name() const override { return "ReportProgress"; }
  void OnBatchEnd(Run& run, const Logs& logs) override;

 private:
  Context& job_;
  uint64_t examples_ = 0;
};

/// Before training: makes parameters and optimizer state of all ranks those of rank `root`. A
/// Replica has done so when it was made; this is for what has been changed since, such as weights
/// that one rank has read from a file.
class BroadcastVariables : public Callback {
 public:
  explicit BroadcastVariables(int root = 0) : root_(root) {}
  std::string name() const override { return "BroadcastVariables"; }
  void OnTrainBegin(Run& run) override;

 private:
  int root_;
};

/// At the end of an epoch: replaces every number in its logs by the mean over all ranks. The loss
/// and the metrics are those of all ranks already; this is for what callbacks before it have added
/// from their own rank.
class MetricAverage : public Callback {
 public:
  std::string name() const override { return "MetricAverage"; }
  void OnEpochEnd(Run& run, Logs& logs) override;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_CALLBACKS_CALLBACKS_H_
