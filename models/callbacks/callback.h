#ifndef DTRUN_MODELS_CALLBACKS_CALLBACK_H_
#define DTRUN_MODELS_CALLBACKS_CALLBACK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/metrics/metric.h"
#include "models/train/replica.h"

namespace dtrun::models {

/// Numbers by name: "loss", "accuracy", "val_loss", "learning_rate".
using Logs = std::map<std::string, double>;

/// The position of a run. All counts are of completed items: before the first batch all are 0.
struct TrainingPosition {
  uint64_t epoch = 0;
  uint64_t batch = 0;  ///< in the epoch
  uint64_t step = 0;   ///< steps of the optimizer in all epochs
  bool operator==(const TrainingPosition&) const = default;
};

/// A running training, test or prediction, as callbacks see it. The trainer owns the Run. Every
/// callback may read all members.
class Run {
 public:
  /// `settle` is collective, and throws on all ranks if one of them has failed. A run of one rank
  /// needs none.
  Run(Replica& replica, std::span<Metric* const> metrics, std::function<void()> settle = {})
      : replica_(replica), metrics_(metrics), settle_(std::move(settle)) {}

  Replica& replica() { return replica_; }
  Communicator& world() { return replica_.world(); }
  Sequential& model() { return replica_.model(); }
  RateOptimizer& optimizer() { return replica_.optimizer(); }
  /// The metrics of the epoch, the loss first. They hold sums over this rank's examples.
  std::span<Metric* const> metrics() { return metrics_; }
  /// Whether this rank prints and writes files. With parameter servers: whether it is the chief.
  bool is_rank_0() { return replica_.is_chief(); }

  double learning_rate() const { return replica_.optimizer().learning_rate(); }
  void set_learning_rate(double rate) { replica_.optimizer().set_learning_rate(rate); }

  /// Call this in a callback on all ranks before it communicates. A rank that has failed, for
  /// example because its loss is not a number, runs no more callbacks: its error is thrown here on
  /// the other ranks, which would wait for it otherwise. Collective.
  void Settle() {
    if (settle_) settle_();
  }

  /// Ends training on all ranks after this batch or epoch. One rank's call is enough.
  void StopTraining() { stop_ = true; }
  bool stop() const { return stop_; }

  /// Reports a failed write. Training continues. The History has `why`. All ranks must report the
  /// same.
  void NotWritten(const std::string& why) { not_written_.push_back(why); }
  const std::vector<std::string>& not_written() const { return not_written_; }

  /// Call Resume in OnTrainBegin, after loading the state of a training from a file. Training
  /// continues at `position`. If the position is inside an epoch, first set the sums of `metrics`
  /// to those of the epoch's earlier batches.
  void Resume(const TrainingPosition& to) {
    position = to;
    resumed = true;
    replica_.set_step(to.step);
    replica_.ParametersChanged();
  }

  TrainingPosition position = {};
  uint64_t epochs = 0;          ///< training ends after so many epochs
  uint64_t steps = 0;           ///< in an epoch; 0: not known yet
  uint64_t global_batch = 0;    ///< examples of all ranks in the current batch
  uint64_t examples = 0;        ///< of this rank in the current batch
  double batch_loss = 0;        ///< this rank's part of the batch's loss: AverageLoss
  uint64_t epoch_examples = 0;  ///< of all ranks, trained on in the epoch
  bool validating = false;      ///< true if a test is the validation of an epoch
  bool resumed = false;
  /// The loss scale, if the training scales its loss. Checkpoints save it. ResumeFrom sets it if
  /// the checkpoint has one.
  std::optional<LossScale> loss_scale = {};
  bool cut_short = false;  ///< in OnEpochEnd: the epoch ended before its last batch
  /// This rank's examples in the current batch: the position of the first one in the global batch,
  /// and the numbers of all in the data set (empty: not known).
  uint64_t first_position = 0;
  std::span<const uint64_t> example_numbers = {};

 private:
  Replica& replica_;
  std::span<Metric* const> metrics_;
  std::function<void()> settle_;
  bool stop_ = false;
  std::vector<std::string> not_written_;
};

/// Code that runs at fixed points of a training, test or prediction. Derive from it and override
/// the functions that you need.
///
/// Every rank must have the same callbacks in the same order. All ranks call them at the same
/// points, so a callback may use the run's communicator, after Run::Settle. Rank 0 prints and
/// writes files.
///
/// The logs of a batch cover this rank's examples: "loss" and the metrics since the start of the
/// epoch. The logs of an epoch, a test or the whole training cover all ranks. A callback may add
/// numbers to an epoch's logs, with the same names on all ranks. Later callbacks and the History
/// see them.
///
/// If a callback throws an error on one rank, training ends on all ranks. The error's text starts
/// with the callback's name.
class Callback {
 public:
  virtual ~Callback() = default;

  /// The name for error messages: "EarlyStopping".
  virtual std::string name() const = 0;

  virtual void OnTrainBegin(Run&) {}
  virtual void OnTrainEnd(Run&, const Logs&) {}
  /// Runs when training ends before its time because the job is going to end (FitOptions::notice).
  /// The position is after a step, or at the end of an epoch that was not validated. Save the state
  /// here. Returns where it was saved; "": nowhere.
  virtual std::string OnPreemption(Run&) { return ""; }
  virtual void OnEpochBegin(Run&) {}
  /// Runs before the validation of an epoch in which the training ends before the last batch. The
  /// position is after the last step: a longer training would go on there. Save the state here.
  virtual void OnEpochCut(Run&) {}
  /// Runs after the epoch's validation.
  virtual void OnEpochEnd(Run&, Logs&) {}
  virtual void OnBatchBegin(Run&) {}
  virtual void OnBatchEnd(Run&, const Logs&) {}

  /// For Evaluate, and for the validation in an epoch.
  virtual void OnTestBegin(Run&) {}
  virtual void OnTestEnd(Run&, const Logs&) {}
  virtual void OnTestBatchBegin(Run&) {}
  virtual void OnTestBatchEnd(Run&, const Logs&) {}

  virtual void OnPredictBegin(Run&) {}
  virtual void OnPredictEnd(Run&) {}
  virtual void OnPredictBatchBegin(Run&) {}
  virtual void OnPredictBatchEnd(Run&) {}
};

using CallbackList = std::vector<std::unique_ptr<Callback>>;

/// Callbacks(EarlyStopping({.patience = 2}), Throughput())
template <typename... Cs>
CallbackList Callbacks(Cs... callbacks) {
  CallbackList list;
  (list.push_back(std::make_unique<Cs>(std::move(callbacks))), ...);
  return list;
}

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_CALLBACKS_CALLBACK_H_
