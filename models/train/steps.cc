#include "models/train/steps.h"

#include "models/losses/average_loss.h"

namespace dtrun::models {
namespace {

// Shows the chunk's outputs to the metrics, every example's loss with `penalty` of the parameters;
// the part of the global batch's loss without it.
double Observe(
    const Chunk& chunk, const Outputs& outputs, const Loss& loss, double penalty,
    std::span<Metric* const> metrics) {
  std::vector<double> losses(outputs.examples);
  const Targets targets = chunk.targets(outputs.width);
  loss.PerExample(outputs, targets, losses);
  const double value = AverageLoss(losses, chunk.sample_weights(), chunk.batch->global_batch);
  for (double& of_example : losses) of_example += penalty;
  const MetricInput input{outputs, targets, losses, chunk.sample_weights()};
  for (Metric* metric : metrics) metric->Update(input);
  return value;
}

}  // namespace

double ComputeGradients(
    Replica& replica, const ReplicaBatch& batch, const Loss& loss,
    std::span<Metric* const> metrics) {
  const double penalty = replica.RegularizationLoss();
  std::vector<double> values(
      static_cast<size_t>(replica.leaf_count()), penalty / replica.all_leaves());
  for (const Chunk& chunk : replica.Chunks(batch)) {
    const Outputs outputs = replica.Forward(chunk, Mode::kTraining);
    values[static_cast<size_t>(chunk.leaf)] += Observe(chunk, outputs, loss, penalty, metrics);
    replica.Backward(chunk, loss);
  }
  return SumInTree(values);
}

double TrainStep(
    Replica& replica, const ReplicaBatch& batch, const Loss& loss,
    std::span<Metric* const> metrics) {
  const double value = ComputeGradients(replica, batch, loss, metrics);
  replica.Apply();
  return value;
}

double TestStep(
    Replica& replica, const ReplicaBatch& batch, const Loss& loss,
    std::span<Metric* const> metrics) {
  const double penalty = replica.RegularizationLoss();
  double value = penalty / replica.world().size();
  for (const Chunk& chunk : replica.Chunks(batch, Mode::kInference)) {
    const Outputs outputs = replica.Forward(chunk, Mode::kInference);
    value += Observe(chunk, outputs, loss, penalty, metrics);
  }
  return value;
}

void PredictStep(Replica& replica, const ReplicaBatch& batch, std::vector<float>& outputs) {
  for (const Chunk& chunk : replica.Chunks(batch, Mode::kInference)) {
    const Outputs some = replica.Forward(chunk, Mode::kInference);
    outputs.insert(outputs.end(), some.data, some.data + some.examples * some.width);
  }
}

}  // namespace dtrun::models
