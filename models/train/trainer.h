#ifndef DTRUN_MODELS_TRAIN_TRAINER_H_
#define DTRUN_MODELS_TRAIN_TRAINER_H_

#include <dtrun/dtrun.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "models/data/dataset.h"
#include "models/layers/loss.h"
#include "models/layers/sequential.h"
#include "models/optim/rate_optimizer.h"
#include "models/train/report.h"

namespace dtrun::models {

struct TrainerOptions {
  uint64_t global_batch = 1024;
  uint64_t steps_per_epoch = 0;  ///< 0: as many as use every example once
  uint64_t max_steps = 0;        ///< 0: no limit
  uint64_t seed = 1;             ///< of the order of examples
  bool overlap = true;  ///< gradients are reduced while the backward pass runs, not after it
  /// Of step 0, 1, ...; without it the optimizer keeps its own.
  std::function<double(uint64_t step)> learning_rate = {};
};

/// After each step of this rank: of the epoch's `steps`, `step` are done, with this rank's share of
/// them so far, in `seconds`.
struct StepReport {
  uint64_t step = 0, steps = 0;
  Tally share;
  double seconds = 0;
};
using OnStep = std::function<void(const StepReport&)>;

/// Data-parallel training: every rank computes the gradient of its share of each global batch, and
/// all step on the sum. N ranks compute what one rank would compute on the same global batch.
/// All functions are collective; errors are those of Communicator. Not thread-safe.
class Trainer {
 public:
  /// Starts all ranks from rank 0's parameters and optimizer state. Everything given outlives it.
  Trainer(
      Communicator& world, Sequential& model, RateOptimizer& optimizer, const Dataset& data,
      const TrainerOptions& options);

  /// Trains for the next epoch, then evaluates the test set.
  EpochResult RunEpoch(const OnStep& on_step);
  /// Whether max_steps are done.
  bool finished() const;
  /// The test set's, over all ranks, each of which has evaluated a part.
  Tally EvaluateTestSet();
  /// The mean loss of every global batch so far.
  const std::vector<double>& step_losses() const { return step_losses_; }

 private:
  Tally Step(uint64_t step_of_epoch, const std::vector<uint32_t>& order);
  Tally SumOverRanks(const Tally& mine);
  void AppendStepLosses(std::vector<double> loss_sums);
  uint64_t StepsOfThisEpoch() const;

  Communicator& world_;
  Sequential& model_;
  RateOptimizer& inner_;
  DistributedOptimizer optimizer_;
  const Dataset& data_;
  TrainerOptions options_;
  uint32_t epoch_ = 0;
  uint64_t step_ = 0;  // of all epochs
  std::vector<double> step_losses_;
};

}  // namespace dtrun::models

#endif
