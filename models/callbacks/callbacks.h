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
  double min_delta = 0;               ///< a change counts as an improvement only if it is larger
  uint64_t patience = 0;              ///< stop after so many epochs without improvement; 0 means 1
  uint64_t start_from_epoch = 0;      ///< ignore earlier epochs
  bool restore_best_weights = false;  ///< of parameters and buffers, at the end of training
  Print print = {};                   ///< prints the reason for the end of training
};

/// Ends training when a number of the logs stops improving.
class EarlyStopping : public Callback {
 public:
  /// Throws the errors of Monitor's constructor.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  std::string name() const override { return "EarlyStopping"; }
  void OnTrainBegin(Run& run) override;
  void OnEpochEnd(Run& run, Logs& logs) override;
  void OnTrainEnd(Run& run, const Logs& logs) override;

  /// The epoch with the best value so far, from 0.
  uint64_t best_epoch() const { return best_epoch_; }

 private:
  EarlyStoppingOptions options_;
  Monitor monitor_;
  double best_ = 0;
  uint64_t best_epoch_ = 0, waited_ = 0;
  std::vector<float> best_weights_;
};

/// Sets the learning rate at the start of each epoch to schedule(epoch, current rate). Epochs count
/// from 0. If the schedule returns a number that is not positive and finite, training ends with an
/// error.
class LearningRateScheduler : public Callback {
 public:
  using Schedule = std::function<double(uint64_t epoch, double rate)>;

  /// With `print`, rank 0 prints each epoch's rate.
  explicit LearningRateScheduler(Schedule schedule, Print print = {})
      : schedule_(std::move(schedule)), print_(std::move(print)) {}
  std::string name() const override { return "LearningRateScheduler"; }
  void OnEpochBegin(Run& run) override;

 private:
  Schedule schedule_;
  Print print_;
};

/// Sets the learning rate before each batch to schedule(step). Steps count from 0, over all epochs.
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
  double base_rate = 1e-3;  ///< the learning rate that suits a single rank
  uint64_t epochs = 5;      ///< duration of the warm-up
  double factor = 0;        ///< final rate / base_rate; 0: the number of ranks
};

/// The linear scaling rule with a gradual warm-up. N ranks take a global batch N times as large, so
/// the rate becomes N times as large. At the start of training, weights change too fast for that
/// rate. So the rate grows linearly over the first `epochs`, batch by batch:
///   rate = base_rate * (1 + (factor - 1) * (epoch + batch / steps) / epochs)
/// Afterwards this callback leaves the rate alone. P. Goyal et al., "Accurate, Large Minibatch SGD:
/// Training ImageNet in 1 Hour", 2017, sections 2.1 and 2.2.
class LearningRateWarmup : public Callback {
 public:
  /// Throws Error kInvalidArgument if base_rate is not above 0, epochs is 0 or factor is below 0.
  explicit LearningRateWarmup(const WarmupOptions& options);
  std::string name() const override { return "LearningRateWarmup"; }
  void OnBatchBegin(Run& run) override;

 private:
  WarmupOptions options_;
};

/// Rank 0 prints the learning rate after each epoch: "Learning rate for epoch 1 is 0.001".
class PrintLearningRate : public Callback {
 public:
  explicit PrintLearningRate(Print print = PrintLine) : print_(std::move(print)) {}
  std::string name() const override { return "PrintLearningRate"; }
  void OnEpochEnd(Run& run, Logs& logs) override;

 private:
  Print print_;
};

/// Measures the speed. Adds three numbers to the logs of an epoch:
/// - "seconds": rank 0's time from the start of the epoch to the end of its last batch.
/// - "images_per_s": of all ranks together in that time.
/// - "exposed_share": the fraction of that time in which a rank exchanges gradients or waits for
///   other ranks, and does not compute. The mean over the ranks.
///
/// The validation does not count. All ranks start an epoch together.
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

/// Records the loss of every global batch, the same on all ranks.
class StepLosses : public Callback {
 public:
  /// Appends to `losses` at the end of each epoch. `losses` must outlive this object.
  explicit StepLosses(std::vector<double>& losses) : losses_(losses) {}
  std::string name() const override { return "StepLosses"; }
  void OnEpochBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnEpochEnd(Run& run, Logs& logs) override;

 private:
  std::vector<double>& losses_;
  std::vector<double> of_epoch_;  // this rank's parts of the losses
};

struct TimelineOptions {
  std::string path = "timeline.json";
  uint64_t first_step = 1;  ///< over all epochs, from 0; step 0 is not typical
  uint64_t steps = 10;
};

/// Writes the events of all ranks in some steps to one file for Chrome or Perfetto; see
/// Context::StartTimeline. If training ends before `steps` steps, the timeline ends too.
class Timeline : public Callback {
 public:
  /// Throws Error kInvalidArgument if path is empty or steps is 0. `job` must outlive this object.
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

/// Reports this rank's progress to the launcher, for `dtrun --progress`.
class ReportProgress : public Callback {
 public:
  /// `job` must outlive this object.
  explicit ReportProgress(Context& job) : job_(job) {}
  std::string name() const override { return "ReportProgress"; }
  void OnBatchEnd(Run& run, const Logs& logs) override;

 private:
  Context& job_;
  uint64_t examples_ = 0;
};

/// Copies the parameters and optimizer state of rank `root` to all ranks, before training. The
/// constructor of Replica does the same. Use this callback after a later change, such as weights
/// that one rank has read from a file.
class BroadcastVariables : public Callback {
 public:
  explicit BroadcastVariables(int root = 0) : root_(root) {}
  std::string name() const override { return "BroadcastVariables"; }
  void OnTrainBegin(Run& run) override;

 private:
  int root_;
};

/// Replaces every number in an epoch's logs by the mean over all ranks. The loss and the metrics
/// already cover all ranks. Use this callback for numbers that earlier callbacks have added on each
/// rank.
class MetricAverage : public Callback {
 public:
  std::string name() const override { return "MetricAverage"; }
  void OnEpochEnd(Run& run, Logs& logs) override;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_CALLBACKS_CALLBACKS_H_
