#ifndef DTRUN_MODELS_TRAIN_TRAINER_H_
#define DTRUN_MODELS_TRAIN_TRAINER_H_

#include <dtrun/communicator.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/callbacks/callback.h"
#include "models/losses/loss.h"
#include "models/metrics/metric.h"
#include "models/train/agreement.h"
#include "models/train/batch.h"
#include "models/train/replica.h"

namespace dtrun::models {

/// One rank's part of the outputs for several global batches.
struct OutputShares {
  std::vector<float> outputs;    ///< of its share of each batch, one after the other
  std::vector<uint64_t> counts;  ///< floats of each batch
};

/// The outputs of all ranks in the order of the data: batch by batch, the shares of a batch in rank
/// order. On rank 0 alone unless `on_all_ranks`. Collective; all ranks have the same batches.
///   rank 0: {a0, b0}   rank 1: {a1, b1}  ->  {a0, a1, b0, b1}
std::vector<float> Gather(Communicator& world, OutputShares mine, bool on_all_ranks);

/// What Fit has seen, the same on all ranks.
struct History {
  std::vector<uint64_t> epochs;  ///< which ones ended in this run, from 0
  std::vector<Logs> logs;        ///< of each of them
  /// What a callback could not write, such as a checkpoint on a full disk: training went on.
  std::vector<std::string> not_written;

  /// The values of one number, epoch by epoch; NaN where an epoch had none.
  std::vector<double> Of(const std::string& name) const;
};

struct FitOptions {
  uint64_t epochs = 1;           ///< after which training ends, those before initial_epoch included
  uint64_t initial_epoch = 0;    ///< the first one to train
  uint64_t steps_per_epoch = 0;  ///< 0: as many as the data has
  uint64_t max_steps = 0;        ///< of all epochs; 0: no limit
  BatchSource* validation_data = nullptr;  ///< evaluated at the end of each epoch
};

enum class PredictTo { kAllRanks, kRank0 };

/// Fit, evaluate and predict, in data-parallel: a replica per rank, each with its share of every
/// global batch. N ranks compute what one would. The same can be written as a loop of your own over
/// Replica, in ten lines: see ForEachBatch in steps.h.
///
/// All functions are collective. What goes wrong on one rank (its data, a callback, a loss that is
/// not a number) is thrown as AgreedError on all of them. Not thread-safe.
class Trainer {
 public:
  /// What is given outlives it. Throws Error kInvalidArgument when the loss does not fit the
  /// network (Loss::CheckLastLayer), or two metrics have one name.
  Trainer(Replica& replica, const Loss& loss, MetricList metrics = {});

  /// Trains. An epoch's logs are "loss", the metrics, "learning_rate" at its end and, with
  /// validation data, "val_loss" and so on. Throws AgreedError with exit code kDiverged when the
  /// loss of a batch is not a finite number; the text names step and rank.
  History Fit(BatchSource& data, const FitOptions& options, const CallbackList& callbacks = {});

  /// "loss" and the metrics over one epoch of `data`, without dropout.
  Logs Evaluate(BatchSource& data, const CallbackList& callbacks = {});

  /// The outputs for one epoch of `data`, (examples, outputs), in the order of the data, each rank
  /// having computed its share. Those of kRank0 are empty elsewhere.
  std::vector<float> Predict(
      BatchSource& data, PredictTo to = PredictTo::kAllRanks, const CallbackList& callbacks = {});

  Replica& replica() { return replica_; }
  /// As they are after Fit's last epoch, or Evaluate: of all ranks' examples.
  const MetricList& metrics() const { return metrics_; }

 private:
  void RunEpoch(
      Run& run, BatchSource& data, const FitOptions& options, const CallbackList& callbacks,
      History& history);
  bool RunBatch(Run& run, BatchSource& data, const CallbackList& callbacks);
  void CheckLoss(const Run& run, double loss);
  Logs EvaluateIn(Run& run, BatchSource& data, const CallbackList& callbacks);
  Logs LogsOf(const std::string& prefix) const;
  void ResetMetrics();

  template <typename Turn>
  void Call(const CallbackList& callbacks, const Turn& turn);

  Replica& replica_;
  const Loss& loss_;
  MetricList metrics_;
  Mean mean_loss_;
  std::vector<Metric*> all_metrics_;  // mean_loss_ first
  Agreement agreement_;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_TRAIN_TRAINER_H_
