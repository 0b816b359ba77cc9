#include "models/loops/loops.h"
#include "models/losses/average_loss.h"

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

}  // namespace dtrun::models
