#include "models/train/steps.h"

#include "models/losses/loss.h"

namespace dtrun::models {

namespace {

// Updates the metrics with the chunk's outputs. The loss of each example includes `penalty`, the
// regularisation. Returns the chunk's part of the global batch's loss, without the penalty.
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

// This loop spells out every part of a step. Forward, loss and backward run in chunks that fit the
// caches. Apply sums the gradients of all replicas and makes the optimizer's step.
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
      if (!data.Next(batch)) return sum;  // the data set is empty
    }
    sum += TrainStep(replica, batch, loss, metrics);
  }
  return sum;
}

}  // namespace dtrun::models
