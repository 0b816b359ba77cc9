// cnn_fmnist training in f16 with a loss scale that changes often, interrupted and resumed.

#include <dtrun/dtrun.h>
#include <omp.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "models/programs/rank_main.h"
#include "models/programs/training.h"
#include "tests/models/idx_files.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

struct Outcome {
  std::string digest;
  double test_loss = 0;
  LossScale scale;
  bool operator==(const Outcome&) const = default;
};

// The loss scale starts at 2^22 and doubles after every 3 good steps until gradients overflow.
Outcome Train(const TemporaryFolder& data, uint64_t steps, const std::vector<std::string>& more) {
  std::vector<std::string> words = {
      "cnn_fmnist",
      "--data-dir",
      data.path(),
      "--network",
      "mlp",
      "--dtype",
      "f16",
      "--device",
      "cuda",
      "--global-batch-size",
      "7",
      "--epochs",
      "3",
      "--schedule",
      "constant",
      "--verbose",
      "0",
      "--max-steps",
      std::to_string(steps)};
  words.insert(words.end(), more.begin(), more.end());
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  omp_set_num_threads(1);
  Context job = Init();
  Outcome outcome;
  {
    Preparation ready = Prepare(ParseOptions(static_cast<int>(argv.size()), argv.data()), job);
    INFO(ready.verdict.problem);
    REQUIRE(ready.verdict.exit_code == kSuccess);
    GpuOptions options;
    options.dtype = DType::kF16;
    options.rows = ready.global_batch;
    options.seed = ready.options.seed;
    options.steps_per_epoch = 100;
    options.workspace_bytes = 32 << 20;
    options.initial_loss_scale = 0x1p22;
    options.loss_scale_growth = 3;
    ready.gpu.replica.reset();
    ready.gpu.replica = GpuReplica::Make(*ready.model, job.world(), options);
    ready.gpu.replica->LoadTrainingData(ready.gpu.train->view());
    ready.gpu.replica->LoadTestData(ready.gpu.test->view());
    const auto strategy = MakeNamedStrategy(job, ready.options.strategy);
    const Trained trained = TrainOnGpu(job, *strategy, ready.options, ready);
    outcome = {
        trained.result.parameter_digest, trained.result.test_loss, ready.gpu.replica->loss_scale()};
  }
  job.Shutdown();
  return outcome;
}

TEST_CASE("a resumed run continues with the saved loss scale and ends with the same bits") {
  TemporaryFolder data, saved;
  WriteToySet(data, 40);
  const uint64_t half = 8;  // in the second epoch, with good steps since the last change
  const Outcome straight = Train(data, 2 * half, {});
  Train(data, half, {"--checkpoint-dir", saved.path(), "--checkpoint-every", "4"});
  const Outcome resumed = Train(data, 2 * half, {"--checkpoint-dir", saved.path(), "--resume"});
  CHECK(resumed == straight);
  CHECK(straight.scale.skipped_steps > 0);
  CHECK(straight.scale.scale != 0x1p22);
}

}  // namespace
}  // namespace dtrun::testing
