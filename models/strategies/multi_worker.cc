// Workers that TF_CONFIG describes, as in TensorFlow's guide to multi-worker training with Keras,
// on ranks. An interrupted training continues from its last backup. The chief saves the model.
//
//   TF_CONFIG='{"cluster": {"worker": ["localhost:2222", "localhost:2223"]},
//               "task": {"type": "worker", "index": 0}}' ./multi_worker &    and index 1
//   dtrun -H h1:2,h2:1 ./multi_worker [DATA-DIR [EPOCHS]]

#include <dtrun/dtrun.h>
#include <omp.h>

#include <cstdlib>
#include <string>

#include "models/callbacks/checkpoints.h"
#include "models/callbacks/log_values.h"
#include "models/callbacks/progress_bar.h"
#include "models/data/distribute.h"
#include "models/data/image_dataset.h"
#include "models/formats/model/saved_model.h"
#include "models/losses/loss.h"
#include "models/message_text.h"
#include "models/metrics/metric.h"
#include "models/networks/network.h"
#include "models/optim/sgd.h"
#include "models/programs/rank_main.h"
#include "models/train/agreement.h"
#include "models/train/batch.h"
#include "models/train/report.h"
#include "models/train/trainer.h"

namespace dtrun::models {
namespace {

constexpr uint64_t kBatchPerWorker = 64;

int Train(Context& job, const std::string& folder, uint64_t epochs) {
  const auto strategy = MakeNamedStrategy(job, "multi_worker_mirrored");
  const int workers = strategy->num_replicas_in_sync();
  // Each worker makes its own data set: all examples, in a different order.
  const ImageDataset images = LoadImageDataset(folder, job);
  const uint64_t steps =
      images.info.train_examples / (kBatchPerWorker * static_cast<uint64_t>(workers));
  StrategyBatches train(strategy->DistributeDatasetFromFunction(
      [&](const dtrun::InputContext& input) -> std::unique_ptr<dtrun::Dataset> {
        const auto seed = static_cast<uint64_t>(input.input_pipeline_id + 1);
        const uint64_t batch =
            input.PerReplicaBatchSize(kBatchPerWorker * static_cast<uint64_t>(workers));
        return std::make_unique<PipelineDataset>(
            images.train.Shuffle({.seed = seed}).Repeat().Batch(batch));
      }));
  StrategyBatches test(strategy->DistributeEvaluationDataset(
      PipelineDataset(images.test.Batch(kBatchPerWorker * static_cast<uint64_t>(workers)))));

  Network network =
      NetworkByName("B", {.classes = images.info.classes, .image = images.info.shape.height});
  const SequentialOptions options = OptionsFor(network, kBatchPerWorker, 1);
  Sequential model(network.input, std::move(network.layers), options);
  Sgd optimizer(model.parameters(), {.learning_rate = 0.01});
  {
    Replica replica(*strategy, model, optimizer);
    const SparseCategoricalCrossentropy loss;
    Trainer trainer(replica, loss, MakeMetrics(SparseCategoricalAccuracy()));
    trainer.Fit(
        train, {.epochs = epochs, .steps_per_epoch = steps, .validation_data = &test},
        Callbacks(
            BackupAndRestore(
                {.folder = "backup",
                 .every_batches = 10,
                 .delete_at_end = false,
                 .print = PrintLine}),
            ProgressBar()));
  }
  const uint64_t digest = DigestOf(model);
  CheckEqualOnAllRanks(digest, job.world());
  if (!strategy->is_chief()) return kSuccess;
  SaveModel(model, "saved_model");
  PrintLine(Text("The chief of ", workers, " workers has saved the model ", ToHex(digest)));
  return kSuccess;
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : dtrun::models::kFashionMnistDir;
  const uint64_t epochs = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 3;
  return dtrun::models::RunAsRank("multi_worker", [&](dtrun::Context& job) {
    omp_set_num_threads(job.threads());
    return dtrun::models::Train(job, folder, epochs);
  });
}
