#include "models/loops/loops.h"

#include "models/losses/average_loss.h"
#include "models/train/steps.h"

namespace dtrun::models {

// Every part of a step in plain view: forward, loss, backward by chunks that suit the caches, then
// the sum of all replicas' gradients and the optimizer.
double ForEachBatch(
    Replica& replica, BatchSource& data, const Loss& loss, std::span<Metric* const> metrics) {
  double sum = 0;
  for (const ReplicaBatch& batch : RestOf(data)) {
    const double penalty = replica.RegularizationLoss();
    sum += penalty / replica.world().size();
    for (const Chunk& chunk : replica.Chunks(batch)) {
      const Outputs outputs = replica.Forward(chunk, Mode::kTraining);
      const Targets targets = chunk.targets(outputs.width);
      std::vector<double> losses(outputs.examples);
      loss.PerExample(outputs, targets, losses);
      sum += AverageLoss(losses, chunk.sample_weights(), batch.global_batch);
      for (double& of_example : losses) of_example += penalty;
      for (Metric* metric : metrics)
        metric->Update({outputs, targets, losses, chunk.sample_weights()});
      replica.Backward(chunk, loss);
    }
    replica.Apply();
  }
  return sum;
}

double TrainEpoch(
    Replica& replica, BatchSource& data, uint64_t epoch, const Loss& loss,
    std::span<Metric* const> metrics) {
  double sum = 0;
  data.StartEpoch(epoch);
  for (const ReplicaBatch& batch : RestOf(data)) sum += TrainStep(replica, batch, loss, metrics);
  return sum;
}

double TrainSteps(
    Replica& replica, BatchSource& data, uint64_t steps, const Loss& loss,
    std::span<Metric* const> metrics, uint64_t* epoch) {
  double sum = 0;
  ReplicaBatch batch;
  for (uint64_t step = 0; step < steps; ++step) {
    if (!data.Next(batch)) {
      data.StartEpoch(++*epoch);
      if (!data.Next(batch)) return sum;  // no data at all
    }
    sum += TrainStep(replica, batch, loss, metrics);
  }
  return sum;
}

}  // namespace dtrun::models
