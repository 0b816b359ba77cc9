#ifndef DTRUN_MODELS_CALLBACKS_CALLBACK_H_
#define DTRUN_MODELS_CALLBACKS_CALLBACK_H_

#include <cstdint>
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

/// Where a run is. All counts are those of things done: in the first batch of a run all are 0.
struct TrainingPosition {
  uint64_t epoch = 0;
  uint64_t batch = 0;  ///< of the epoch
  uint64_t step = 0;   ///< of the optimizer, of all epochs
  bool operator==(const TrainingPosition&) const = default;
};

/// A training, test or prediction that goes on, as callbacks see it. The trainer owns it; what
/// stands here may be read at any turn.
class Run {
 public:
  Run(Replica& replica, std::span<Metric* const> metrics) : replica_(replica), metrics_(metrics) {}

  Replica& replica() { return replica_; }
  Communicator& world() { return replica_.world(); }
  Sequential& model() { return replica_.model(); }
  RateOptimizer& optimizer() { return replica_.optimizer(); }
  /// Of the epoch, with the loss as the first one; sums of this rank's examples.
  std::span<Metric* const> metrics() { return metrics_; }
  bool is_rank_0() { return world().rank() == 0; }

  double learning_rate() const { return replica_.optimizer().learning_rate(); }
  void set_learning_rate(double rate) { replica_.optimizer().set_learning_rate(rate); }

  /// Ends training after this batch or epoch on all ranks, also when one rank alone asks for it.
  void StopTraining() { stop_ = true; }
  bool stop() const { return stop_; }

  /// Something could not be written. Training goes on; the History has it, the same on all ranks.
  void NotWritten(const std::string& why) { not_written_.push_back(why); }
  const std::vector<std::string>& not_written() const { return not_written_; }

  /// In OnTrainBegin: goes on at `position`, because what training needs was read from a file. The
  /// sums of `metrics` are then those of the epoch's batches before it.
  void Resume(const TrainingPosition& to) {
    position = to;
    resumed = true;
    replica_.set_step(to.step);
    replica_.ParametersChanged();
  }

  TrainingPosition position = {};
  uint64_t epochs = 0;          ///< after which training ends
  uint64_t steps = 0;           ///< of an epoch; 0: not known yet
  uint64_t global_batch = 0;    ///< examples of all ranks in the batch at hand
  uint64_t examples = 0;        ///< of this rank in it
  double batch_loss = 0;        ///< this rank's part of the batch's loss: AverageLoss
  uint64_t epoch_examples = 0;  ///< of all ranks, trained on in the epoch
  bool validating = false;      ///< whether a test is an epoch's validation
  bool resumed = false;
  /// Of a training that scales its loss. Checkpoints have it: what training goes on with, if the
  /// one that it goes on from has had one.
  std::optional<LossScale> loss_scale = {};
  bool cut_short = false;  ///< in OnEpochEnd: the epoch ended before its last batch

 private:
  Replica& replica_;
  std::span<Metric* const> metrics_;
  bool stop_ = false;
  std::vector<std::string> not_written_;
};

/// What happens besides training, at its turns. Derive from it and override what you need.
///
/// Every rank has the same callbacks in the same order and calls them at the same turns, so a
/// callback may use the run's communicator; what is to be printed or written is rank 0's.
///
/// The logs of a batch are this rank's: "loss" and the metrics since the epoch began. Those of an
/// epoch, a test and the whole training are all ranks' together; a callback may add to an epoch's
/// logs for those after it and for the History, the same names on all ranks.
///
/// An error that a callback throws on one rank ends training on all of them, with its text and the
/// name of the callback in front.
class Callback {
 public:
  virtual ~Callback() = default;

  /// What errors call it: "EarlyStopping".
  virtual std::string name() const = 0;

  virtual void OnTrainBegin(Run&) {}
  virtual void OnTrainEnd(Run&, const Logs&) {}
  virtual void OnEpochBegin(Run&) {}
  /// After the epoch's validation.
  virtual void OnEpochEnd(Run&, Logs&) {}
  virtual void OnBatchBegin(Run&) {}
  virtual void OnBatchEnd(Run&, const Logs&) {}

  /// Of Evaluate, and of the validation in an epoch.
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
