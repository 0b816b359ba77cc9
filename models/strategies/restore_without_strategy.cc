// Restores a checkpoint that was saved under a strategy, without a strategy or under another one:
// the last part of TensorFlow's guides, on ranks. A checkpoint does not depend on the strategy that
// saved it.
//
//   ./restore_without_strategy A training_checkpoints [DATA-DIR]               alone, no strategy
//   dtrun -np 2 ./restore_without_strategy A training_checkpoints DATA-DIR mirrored

#include <dtrun/dtrun.h>
#include <omp.h>

#include <memory>
#include <string>

#include "models/callbacks/log_values.h"
#include "models/data/distribute.h"
#include "models/data/image_dataset.h"
#include "models/losses/loss.h"
#include "models/message_text.h"
#include "models/metrics/metric.h"
#include "models/networks/network.h"
#include "models/optim/sgd.h"
#include "models/programs/rank_main.h"
#include "models/train/agreement.h"
#include "models/train/batch.h"
#include "models/train/trainer.h"

namespace dtrun::models {
namespace {

constexpr uint64_t kBatch = 250;

// The arguments of the command line.
struct Request {
  std::string network, checkpoints, data;
  std::string strategy;  // "": none
};

// Returns the loss and accuracy on the test set. `replica` may belong to any strategy.
Logs Evaluate(Replica& replica, StrategyBatches& test) {
  const SparseCategoricalCrossentropy loss;
  return Trainer(replica, loss, MakeMetrics(SparseCategoricalAccuracy())).Evaluate(test);
}

int Restore(Context& job, const Request& request) {
  const ImageDataset images = LoadImageDataset(request.data, job);
  const PipelineDataset dataset(images.test.Batch(kBatch));
  Network network = NetworkByName(
      request.network, {.classes = images.info.classes, .image = images.info.shape.height});
  const SequentialOptions options = OptionsFor(network, kBatch, 2);
  Sequential model(network.input, std::move(network.layers), options);
  CheckpointManager checkpoints(job.world(), request.checkpoints, {.read_only = true});
  const Loaded loaded = checkpoints.Load(TensorsOf(model.parameters()), {.allow_unexpected = true});
  if (!loaded.checkpoint) {
    throw AgreedError(
        ErrorCode::kInvalidArgument, kDataUnusable,
        Text(request.checkpoints, ": there is no checkpoint, expected those of a training"));
  }

  Sgd optimizer(model.parameters(), {});  // never makes a step
  Logs logs;
  if (request.strategy.empty()) {
    StrategyBatches test(dataset.Distribute(job.world(), InputSplit::kData));
    Replica replica(job.world(), model, optimizer);
    logs = Evaluate(replica, test);
  } else {
    const auto strategy = MakeNamedStrategy(job, request.strategy);
    StrategyBatches test(strategy->DistributeEvaluationDataset(dataset));
    Replica replica(*strategy, model, optimizer);
    logs = Evaluate(replica, test);
  }
  if (job.rank() == 0) {
    PrintLine(
        Text(
            "Restored ", loaded.checkpoint->name, " ",
            request.strategy.empty() ? "without a strategy" : "under " + request.strategy) +
        Format(": loss %.4f, accuracy %.4f", logs.at("loss"), logs.at("accuracy")));
  }
  return kSuccess;
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) {
  namespace models = dtrun::models;
  if (argc < 3) {
    return models::Complain(
        "restore_without_strategy", "expected NETWORK CHECKPOINTS [DATA-DIR [STRATEGY]]",
        models::kUsage);
  }
  const models::Request request{
      argv[1], argv[2], argc > 3 ? argv[3] : models::kFashionMnistDir, argc > 4 ? argv[4] : ""};
  return models::RunAsRank("restore_without_strategy", [&](dtrun::Context& job) {
    omp_set_num_threads(job.threads());
    return models::Restore(job, request);
  });
}
