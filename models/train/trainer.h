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
#include "models/train/kept_training.h"
#include "models/train/replica.h"

namespace dtrun::models {

/// One rank's part of the outputs for several global batches.
struct OutputShares {
  std::vector<float> outputs;    ///< of its share of each batch, one after the other
  std::vector<uint64_t> counts;  ///< floats of each batch
};

/// Returns the outputs of all ranks in the order of the data: batch by batch, and in a batch in
/// rank order. Only rank 0 gets them, unless `on_all_ranks`. Collective. All ranks have the same
/// batches.
///   rank 0: {a0, b0}   rank 1: {a1, b1}  ->  {a0, a1, b0, b1}
std::vector<float> Gather(Communicator& world, OutputShares mine, bool on_all_ranks);

struct FitOptions {
  uint64_t epochs = 1;           ///< training ends after so many epochs, counted from epoch 0
  uint64_t initial_epoch = 0;    ///< the first epoch to train
  uint64_t steps_per_epoch = 0;  ///< 0: all batches of the data
  uint64_t max_steps = 0;        ///< over all epochs; 0: no limit
  BatchSource* validation_data = nullptr;  ///< evaluated at the end of each epoch
  /// Keeps the state if the job loses ranks, for the next call in the same process. nullptr: the
  /// state is lost with this call.
  KeptTraining* kept = nullptr;
};

enum class PredictTo { kAllRanks, kRank0 };

/// Data-parallel fit, evaluate and predict. Each rank has a replica and a share of every global
/// batch. N ranks compute the same as one rank. For a loop of your own over Replica, see
/// ForEachBatch in steps.h.
///
/// All functions are collective. If one rank fails (its data, a callback, a loss that is not
/// finite), all ranks throw AgreedError. Not thread-safe.
class Trainer {
 public:
  /// The arguments must outlive this object. Throws Error kInvalidArgument if the loss does not fit
  /// the network (Loss::CheckLastLayer), or two metrics have the same name.
  Trainer(Replica& replica, const Loss& loss, MetricList metrics = {});

  /// From now on, looks at `notice`, which outlives this object. If any rank gets it, all ranks
  /// stop after the same step, or in an evaluation. The callbacks save (Callback::OnPreemption),
  /// and Fit throws AgreedError with exit code kSavedForLater, or kResultNotWritten if nothing was
  /// saved. Evaluate throws AgreedError with exit code kSavedForLater.
  void Watch(const PreemptionNotice& notice) { notice_ = &notice; }

  /// Trains. The logs of an epoch are "loss", the metrics, "learning_rate" at its end and, with
  /// validation data, "val_loss" and so on. If the loss of a batch is not finite, throws
  /// AgreedError with exit code kDiverged. The text names the step and the rank.
  History Fit(BatchSource& data, const FitOptions& options, const CallbackList& callbacks = {});

  /// Returns "loss" and the metrics over one epoch of `data`, without dropout.
  Logs Evaluate(BatchSource& data, const CallbackList& callbacks = {});

  /// Returns the outputs for one epoch of `data`, (examples, outputs), in the order of the data.
  /// Each rank computes its share. With kRank0, the other ranks get an empty result.
  std::vector<float> Predict(
      BatchSource& data, PredictTo to = PredictTo::kAllRanks, const CallbackList& callbacks = {});

  Replica& replica() { return replica_; }
  /// The metrics of the last epoch of Fit, or of Evaluate, over the examples of all ranks.
  const MetricList& metrics() const { return metrics_; }

 private:
  void RunEpoch(
      Run& run, BatchSource& data, const FitOptions& options, const CallbackList& callbacks,
      History& history);
  void RunEpochs(
      Run& run, BatchSource& data, const FitOptions& options, const CallbackList& callbacks,
      History& history);
  [[noreturn]] void EndForLater(Run& run, const CallbackList& callbacks);
  bool RunBatch(
      Run& run, BatchSource& data, const CallbackList& callbacks, KeptTraining* kept,
      const History& history);
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
  const PreemptionNotice* notice_ = nullptr;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_TRAIN_TRAINER_H_
