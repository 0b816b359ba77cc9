// Fit with callbacks under a strategy, as in TensorFlow's guide to distributed training with Keras,
// on ranks. The callbacks write logs for TensorBoard, save a checkpoint per epoch and lower the
// learning rate. At the end, the chief saves the model.
//
//   dtrun -np 2 ./fit_with_callbacks [DATA-DIR [STRATEGY [EPOCHS]]]

#include <dtrun/dtrun.h>
#include <omp.h>

#include <cstdlib>
#include <string>

#include "models/callbacks/callbacks.h"
#include "models/callbacks/checkpoints.h"
#include "models/callbacks/log_values.h"
#include "models/callbacks/progress_bar.h"
#include "models/callbacks/tensorboard.h"
#include "models/data/distribute.h"
#include "models/data/image_dataset.h"
#include "models/formats/model/saved_model.h"
#include "models/gpu/cuda_device.h"
#include "models/losses/loss.h"
#include "models/message_text.h"
#include "models/metrics/metric.h"
#include "models/networks/network.h"
#include "models/optim/adam.h"
#include "models/programs/rank_main.h"
#include "models/train/agreement.h"
#include "models/train/batch.h"
#include "models/train/trainer.h"

namespace dtrun::models {
namespace {

constexpr uint64_t kBatchPerReplica = 64;

double Decay(uint64_t epoch, double) { return epoch < 3 ? 1e-3 : epoch < 7 ? 1e-4 : 1e-5; }

int Train(Context& job, const std::string& folder, const std::string& name, uint64_t epochs) {
  const auto strategy = MakeNamedStrategy(job, name);
  const int replicas = strategy->num_replicas_in_sync();
  if (strategy->is_chief()) PrintLine(Text("Number of devices: ", replicas));
  const ImageDataset images = LoadImageDataset(folder, job);
  const uint64_t global_batch = kBatchPerReplica * static_cast<uint64_t>(replicas);
  StrategyBatches train(strategy->DistributeDataset(
      PipelineDataset(images.train.Cache().Shuffle({.seed = 7}).Batch(global_batch))));
  StrategyBatches test(
      strategy->DistributeEvaluationDataset(PipelineDataset(images.test.Batch(global_batch))));

  Network network =
      NetworkByName("B", {.classes = images.info.classes, .image = images.info.shape.height});
  const auto device = MakeDevice(*strategy);
  SequentialOptions options = OptionsFor(network, train.largest_batch(), 1);
  options.device = device.get();
  Sequential model(network.input, std::move(network.layers), options);
  Adam optimizer(model.parameters(), {}, *device);
  {
    Replica replica(*strategy, model, optimizer);
    if (strategy->is_server()) return kSuccess;  // it has served the workers
    const SparseCategoricalCrossentropy loss;
    Trainer trainer(replica, loss, MakeMetrics(SparseCategoricalAccuracy()));
    trainer.Fit(
        train, {.epochs = epochs, .validation_data = &test},
        Callbacks(
            TensorBoard({.log_dir = "logs"}),
            ModelCheckpoint(
                {.path = "training_checkpoints/ckpt_{epoch}", .save_weights_only = true}),
            LearningRateScheduler(Decay), PrintLearningRate(), ProgressBar()));
    const Logs logs = trainer.Evaluate(test);
    if (strategy->is_chief()) {
      PrintLine(
          Format("Eval loss: %.4f, Eval accuracy: %.4f", logs.at("loss"), logs.at("accuracy")));
    }
  }  // the model owns its parameters again
  if (strategy->is_chief()) SaveModel(model, "saved_model");
  return kSuccess;
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : dtrun::models::kFashionMnistDir;
  const std::string strategy = argc > 2 ? argv[2] : "mirrored";
  const uint64_t epochs = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 12;
  return dtrun::models::RunAsRank("fit_with_callbacks", [&](dtrun::Context& job) {
    omp_set_num_threads(job.threads());
    return dtrun::models::Train(job, folder, strategy, epochs);
  });
}
