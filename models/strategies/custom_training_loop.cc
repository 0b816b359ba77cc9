// A custom training loop under any strategy, as in TensorFlow's guide to custom training with
// tf.distribute.Strategy. The name in the command line selects the strategy and its devices.
//
//   dtrun -np 2 ./custom_training_loop [DATA-DIR [STRATEGY [EPOCHS]]]

#include <dtrun/dtrun.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "models/callbacks/log_values.h"
#include "models/data/distribute.h"
#include "models/data/image_dataset.h"
#include "models/gpu/cuda_device.h"
#include "models/losses/loss.h"
#include "models/message_text.h"
#include "models/metrics/metric.h"
#include "models/networks/network.h"
#include "models/optim/adam.h"
#include "models/programs/rank_main.h"
#include "models/train/agreement.h"
#include "models/train/batch.h"
#include "models/train/steps.h"

namespace dtrun::models {
namespace {

constexpr uint64_t kBatchPerReplica = 64;

// The mean loss of an epoch. Each replica adds its own losses. Read adds up all replicas.
class MeanLoss {
 public:
  MeanLoss(StrategyScope scope, const std::string& name)
      : sums_(scope.MakeVariable<double>(
            name, {0, 0}, {VariableSynchronization::kOnRead, VariableAggregation::kSum})) {}
  void Add(double loss, double batches) { sums_.AssignAdd({loss, batches}); }
  double Read() const { return sums_.Read()[0] / sums_.Read()[1]; }
  void Reset() { sums_.Set({0, 0}); }

 private:
  Variable<double> sums_;  // of losses, of batches
};

void Train(Strategy& strategy, const ImageDataset& images, uint64_t epochs) {
  const uint64_t replicas = static_cast<uint64_t>(strategy.num_replicas_in_sync());
  const uint64_t global_batch = kBatchPerReplica * replicas;
  StrategyBatches train(strategy.DistributeDataset(
      PipelineDataset(images.train.Shuffle({.seed = 7}).Batch(global_batch))));
  StrategyBatches test(
      strategy.DistributeEvaluationDataset(PipelineDataset(images.test.Batch(global_batch))));

  Network network =
      NetworkByName("A", {.classes = images.info.classes, .image = images.info.shape.height});
  const auto device = MakeDevice(strategy);
  SequentialOptions options = OptionsFor(network, train.largest_batch(), 1);
  options.device = device.get();
  Sequential model(network.input, std::move(network.layers), options);
  Adam optimizer(model.parameters(), {}, *device);
  Replica replica(strategy, model, optimizer);  // the strategy owns the parameters now
  if (strategy.is_server()) return;             // it has served the workers

  const SparseCategoricalCrossentropy loss;
  MeanLoss train_loss(strategy.Scope(), "train_loss"), test_loss(strategy.Scope(), "test_loss");
  SparseCategoricalAccuracy train_accuracy, test_accuracy;
  Metric* const train_metrics[] = {&train_accuracy};
  Metric* const test_metrics[] = {&test_accuracy};
  // Each replica counts a batch as 1/replicas, so that all replicas together count it once.
  const double part = 1 / static_cast<double>(replicas);
  const auto train_step = [&](const ReplicaBatch& batch) {
    const double mine = ComputeGradients(replica, batch, loss, train_metrics);
    replica.Apply();
    return mine;  // the parts of all replicas add up to the loss of the global batch
  };

  CheckpointManager checkpoints = strategy.Checkpoints("training_checkpoints");
  for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
    train.StartEpoch(epoch);
    for (const ReplicaBatch& batch : RestOf(train))
      train_loss.Add(strategy.Run(train_step, batch), part);
    test.StartEpoch(0);
    for (const ReplicaBatch& batch : RestOf(test))
      test_loss.Add(
          strategy.Run([&] { return TestStep(replica, batch, loss, test_metrics); }), part);
    SumOverRanks(strategy.replicas(), train_metrics);
    SumOverRanks(strategy.replicas(), test_metrics);
    const double trained = train_loss.Read(), tested = test_loss.Read();
    if (strategy.is_chief()) {
      PrintLine(
          Text("Epoch ", epoch + 1) +
          Format(
              ", Loss: %.4f, Accuracy: %.2f, Test Loss: %.4f, Test Accuracy: %.2f", trained,
              100 * train_accuracy.Result(), tested, 100 * test_accuracy.Result()));
    }
    checkpoints.Save({.step = replica.step()}, TensorsOf(model.BorrowWeights()));
    train_loss.Reset(), test_loss.Reset(), train_accuracy.Reset(), test_accuracy.Reset();
  }
  if (strategy.is_chief()) PrintLine("Parameters: " + ToHex(DigestOf(model)));
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : dtrun::models::kFashionMnistDir;
  const std::string strategy = argc > 2 ? argv[2] : "mirrored";
  const uint64_t epochs = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 10;
  return dtrun::models::RunAsRank("custom_training_loop", [&](dtrun::Context& job) {
    const dtrun::models::ImageDataset images = dtrun::models::LoadImageDataset(folder, job);
    const int threads = std::max(1, job.threads() / dtrun::ReplicasPerProcess(job, strategy));
    dtrun::models::RunNamedReplicas(job, strategy, [&](dtrun::Strategy& of_replica) {
      omp_set_num_threads(threads);
      dtrun::models::Train(of_replica, images, epochs);
    });
    return dtrun::models::kSuccess;
  });
}
