#include "models/callbacks/checkpoints.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "models/layers/dense.h"
#include "models/train/agreement.h"
#include "tests/models/train/training_rig.h"
#include "tests/support/subprocess.h"

namespace dtrun::models {
namespace {

namespace fs = std::filesystem;
using dtrun::testing::Expect;
using dtrun::testing::Nothing;
using dtrun::testing::TemporaryFolder;

std::vector<std::string> CheckpointsIn(const std::string& folder) {
  std::vector<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && !entry.is_symlink())
      names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("a checkpoint is saved every epoch under the pattern's name") {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/saved/ckpt_{epoch:02d}";
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    rig.trainer.Fit(rig.train, {.epochs = 3}, Callbacks(ModelCheckpoint({.path = path})));
  });
  CHECK(errors == Nothing(2));
  CHECK(
      CheckpointsIn(folder.path() + "/saved") ==
      std::vector<std::string>{"ckpt_01", "ckpt_02", "ckpt_03"});
}

TEST_CASE("ModelCheckpoint can save weights every N batches and keep the newest") {
  TemporaryFolder folder;
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    rig.trainer.Fit(
        rig.train, {.epochs = 2},
        Callbacks(ModelCheckpoint(
            {.path = folder.path() + "/e{epoch}b{batch}",
             .every_batches = 4,
             .save_weights_only = true,
             .max_to_keep = 2,
             .asynchronous = false})));
    // Saves at steps 4, 8 and 12. An epoch has 6 steps.
    CheckpointManager manager(rig.world, folder.path(), {.read_only = true});
    std::vector<float> weights = rig.Weights();
    const Loaded loaded = manager.Load(TensorsOf(rig.model.parameters()));
    Expect(loaded.checkpoint && loaded.checkpoint->step == 12, "the newest one, and no more in it");
    Expect(rig.Weights() == weights, "the weights of the end");
  });
  CHECK(errors == Nothing(2));
  CHECK(CheckpointsIn(folder.path()) == std::vector<std::string>{"e2b2", "e2b6"});
}

// Logs a score for each epoch.
class Score : public Callback {
 public:
  std::string name() const override { return "Score"; }
  void OnEpochEnd(Run& run, Logs& logs) override {
    logs["score"] = std::vector<double>{3, 5, 4}.at(run.position.epoch - 1);
  }
};

TEST_CASE("ModelCheckpoint can save only improvements of a metric") {
  TemporaryFolder folder;
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    rig.trainer.Fit(
        rig.train, {.epochs = 3},
        Callbacks(
            Score(), ModelCheckpoint(
                         {.path = folder.path() + "/best_{epoch}_{score:.0f}",
                          .save_best_only = true,
                          .monitor = "score",
                          .mode = MonitorMode::kMax})));
  });
  CHECK(errors == Nothing(2));
  CHECK(CheckpointsIn(folder.path()) == std::vector<std::string>{"best_1_3", "best_2_5"});
}

TEST_CASE("invalid settings of checkpoints are refused by name") {
  CHECK_THROWS_WITH(
      ModelCheckpoint({.path = "folder/"}),
      "ModelCheckpoint: the path 'folder/', expected a folder and a name like ckpt_{epoch}");
  CHECK_THROWS_WITH(
      ModelCheckpoint({.every_epochs = 0}),
      "ModelCheckpoint: every_epochs is 0, expected at least 1");
  CHECK_THROWS_WITH(
      BackupAndRestore({.folder = ""}), "BackupAndRestore: folder is '', expected a folder");
  TemporaryFolder folder;
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    rig.trainer.Fit(
        rig.train, {.epochs = 1},
        Callbacks(ModelCheckpoint({.path = folder.path() + "/{epochs}"})));
  });
  CHECK(
      errors == OnAll(
                    2,
                    "ModelCheckpoint: the name '{epochs}': {epochs} is not known, expected one of "
                    "accuracy, batch, epoch, learning_rate, loss, step"));
}

// Interrupts training, as a kill does.
class Breaks : public Callback {
 public:
  explicit Breaks(uint64_t step) : step_(step) {}
  std::string name() const override { return "Breaks"; }
  void OnBatchEnd(Run& run, const Logs&) override {
    if (run.position.step == step_) throw std::runtime_error("off");
  }

 private:
  uint64_t step_;
};

struct Ended {
  History history;
  std::vector<float> weights;
};

TEST_CASE("a training interrupted inside an epoch resumes and ends with the same bits") {
  TemporaryFolder folder;
  Ended whole, resumed;
  OnTrainingRanks(3, [&](TrainingRig& rig) {
    History history = rig.trainer.Fit(rig.train, {.epochs = 3, .validation_data = &rig.test});
    if (rig.world.rank() == 0) whole = {std::move(history), rig.Weights()};
  });
  const auto broken = OnTrainingRanks(3, [&](TrainingRig& rig) {
    rig.trainer.Fit(
        rig.train, {.epochs = 3, .validation_data = &rig.test},
        Callbacks(
            BackupAndRestore({.folder = folder.path(), .every_batches = 4, .asynchronous = false}),
            Breaks(10)));
  });
  CHECK(broken == OnAll(3, "Breaks: off"));
  std::string line;
  const auto errors = OnTrainingRanks(3, [&](TrainingRig& rig) {
    History history = rig.trainer.Fit(
        rig.train, {.epochs = 3, .validation_data = &rig.test},
        Callbacks(BackupAndRestore(
            {.folder = folder.path(), .print = [&](const std::string& said) { line = said; }})));
    if (rig.world.rank() == 0) resumed = {std::move(history), rig.Weights()};
  });
  CHECK(errors == Nothing(3));
  CHECK(line == "Resuming from " + folder.path() + "/ckpt_8 in epoch 2, batch 3");
  REQUIRE(resumed.history.epochs == std::vector<uint64_t>{1, 2});
  CHECK(resumed.history.logs[0] == whole.history.logs[1]);
  CHECK(resumed.history.logs[1] == whole.history.logs[2]);
  CHECK(resumed.weights == whole.weights);
  CHECK(CheckpointsIn(folder.path()).empty());  // a completed training deletes its backup
}

// Sends the notice that the job is going to end: after a step, or in a validation.
class IsTold : public Callback {
 public:
  IsTold(uint64_t step, bool in_validation) : step_(step), in_validation_(in_validation) {}
  std::string name() const override { return "IsTold"; }
  void OnBatchEnd(Run& run, const Logs&) override {
    if (run.position.step == step_ && !in_validation_) Tell(run);
  }
  void OnTestBatchEnd(Run& run, const Logs&) override {
    if (run.position.step == step_ && in_validation_) Tell(run);
  }

 private:
  static void Tell(Run& run) {
    if (run.world().rank() == 1) raise(SIGUSR1);
  }

  uint64_t step_;
  bool in_validation_;
};

TEST_CASE("a training that is told to end saves at once, and resumes with the same bits") {
  const bool in_validation = GENERATE(false, true);  // of the second epoch
  const uint64_t step = in_validation ? 12 : 9;
  CAPTURE(in_validation);
  TemporaryFolder folder;
  Ended whole, resumed;
  OnTrainingRanks(3, [&](TrainingRig& rig) {
    History history = rig.trainer.Fit(rig.train, {.epochs = 3, .validation_data = &rig.test});
    if (rig.world.rank() == 0) whole = {std::move(history), rig.Weights()};
  });
  {
    const PreemptionNotice notice;
    const auto told = OnTrainingRanks(3, [&](TrainingRig& rig) {
      rig.trainer.Watch(notice);
      rig.trainer.Fit(
          rig.train, {.epochs = 3, .validation_data = &rig.test},
          Callbacks(BackupAndRestore({.folder = folder.path()}), IsTold(step, in_validation)));
    });
    CHECK(
        told == OnAll(
                    3, "the job is going to end; ended after step " + std::to_string(step) +
                           ", in epoch 2, batch " + std::to_string(step - 6) +
                           "; the state is saved in " + folder.path()));
  }
  const auto errors = OnTrainingRanks(3, [&](TrainingRig& rig) {
    History history = rig.trainer.Fit(
        rig.train, {.epochs = 3, .validation_data = &rig.test},
        Callbacks(BackupAndRestore({.folder = folder.path()})));
    if (rig.world.rank() == 0) resumed = {std::move(history), rig.Weights()};
  });
  CHECK(errors == Nothing(3));
  REQUIRE(resumed.history.epochs == std::vector<uint64_t>{1, 2});
  CHECK(resumed.history.logs[0] == whole.history.logs[1]);
  CHECK(resumed.history.logs[1] == whole.history.logs[2]);
  CHECK(resumed.weights == whole.weights);
}

TEST_CASE("a training that ends inside an epoch goes on there with the same curve to the bit") {
  TemporaryFolder folder;
  Ended whole, resumed;
  OnTrainingRanks(3, [&](TrainingRig& rig) {
    History history = rig.trainer.Fit(rig.train, {.epochs = 3, .validation_data = &rig.test});
    if (rig.world.rank() == 0) whole = {std::move(history), rig.Weights()};
  });
  const auto fit = [&](const FitOptions& options) {
    return OnTrainingRanks(3, [&](TrainingRig& rig) {
      FitOptions with_test = options;
      with_test.validation_data = &rig.test;
      History history = rig.trainer.Fit(
          rig.train, with_test,
          Callbacks(BackupAndRestore({.folder = folder.path(), .delete_at_end = false})));
      if (rig.world.rank() == 0) resumed = {std::move(history), rig.Weights()};
    });
  };
  CHECK(fit({.epochs = 3, .max_steps = 8}) == Nothing(3));
  const std::vector<std::string> saved = CheckpointsIn(folder.path());
  CHECK(std::find(saved.begin(), saved.end(), "ckpt_8") != saved.end());
  CHECK(fit({.epochs = 3, .max_steps = 8}) == Nothing(3));
  CHECK(resumed.history.epochs.empty());  // nothing is left to train
  CHECK(fit({.epochs = 3}) == Nothing(3));
  REQUIRE(resumed.history.epochs == std::vector<uint64_t>{1, 2});
  CHECK(resumed.history.logs[0] == whole.history.logs[1]);
  CHECK(resumed.history.logs[1] == whole.history.logs[2]);
  CHECK(resumed.weights == whole.weights);
}

TEST_CASE("a training that is told to end and has no place to save says so with exit code 73") {
  const PreemptionNotice notice;
  int code = 0;
  const auto told = OnTrainingRanks(2, [&](TrainingRig& rig) {
    rig.trainer.Watch(notice);
    try {
      rig.trainer.Fit(rig.train, {.epochs = 1}, Callbacks(IsTold(2, false)));
    } catch (const AgreedError& error) {
      if (rig.world.rank() == 0) code = error.exit_code();
      throw;
    }
  });
  CHECK(
      told == OnAll(
                  2,
                  "the job is going to end; ended after step 2, in epoch 1, batch 2; the state "
                  "was not saved"));
  CHECK(code == 73);
}

// Without a stack of its own, the handler writes into the heap (preemption.h).
TEST_CASE("notices in the middle of a product of matrices change no memory") {
  const PreemptionNotice notice;
  Sequential network({1, 1, 9216}, Layers(Dense(128)), {.micro_batch = 16, .micro_batches = 2});
  network.PrepareWeights();
  std::fill_n(network.input(), size_t{32} * 9216, 1.0f);
  const auto product = [&] {
    network.Forward({}, 32);
    return std::vector<float>(network.output(), network.output() + size_t{32} * 128);
  };
  const std::vector<float> undisturbed = product();
  std::atomic<bool> is_done = false;
  std::thread signals([&is_done, computing = pthread_self()] {
    while (!is_done) {
      pthread_kill(computing, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  int changed = 0;
  for (int i = 0; i < 1000; ++i) changed += product() == undisturbed ? 0 : 1;
  is_done = true;
  signals.join();
  CHECK(changed == 0);
  CHECK(notice.given());
}

TEST_CASE("the first SIGTERM is a notice") {
  const PreemptionNotice notice;
  CHECK_FALSE(notice.given());
  raise(SIGTERM);
  CHECK(notice.given());
  CHECK_FALSE(PreemptionNotice().given());
}

// Saving equalizes the moving averages of all ranks, so both trainings save at the same steps.
TEST_CASE("a network with batch normalization resumes with the same bits and buffers") {
  const bool synchronized = GENERATE(false, true);
  TemporaryFolder first, second;
  Ended whole, resumed;
  const auto fit = [&](const std::string& folder, uint64_t breaks_at, Ended& ended) {
    return OnTrainingRanks(
        3,
        [&](TrainingRig& rig) {
          History history = rig.trainer.Fit(
              rig.train, {.epochs = 3, .validation_data = &rig.test},
              Callbacks(
                  BackupAndRestore({.folder = folder, .every_batches = 4, .asynchronous = false}),
                  Breaks(breaks_at)));
          if (rig.world.rank() == 0) ended = {std::move(history), rig.Weights()};
        },
        [&] { return NormalizedLayers(synchronized); });
  };
  CHECK(fit(first.path(), 1000, whole) == Nothing(3));
  CHECK(fit(second.path(), 10, resumed) == OnAll(3, "Breaks: off"));
  CHECK(fit(second.path(), 1000, resumed) == Nothing(3));
  REQUIRE(resumed.history.epochs == std::vector<uint64_t>{1, 2});
  CHECK(resumed.history.logs[0] == whole.history.logs[1]);
  CHECK(resumed.history.logs[1] == whole.history.logs[2]);
  CHECK(resumed.weights == whole.weights);
}

TEST_CASE("2 ranks resume a training of 4 ranks with the same curve") {
  TemporaryFolder folder;
  History whole, resumed;
  OnTrainingRanks(4, [&](TrainingRig& rig) {
    const History history = rig.trainer.Fit(rig.train, {.epochs = 3});
    if (rig.world.rank() == 0) whole = history;
  });
  OnTrainingRanks(4, [&](TrainingRig& rig) {
    rig.trainer.Fit(
        rig.train, {.epochs = 3},
        Callbacks(
            BackupAndRestore({.folder = folder.path(), .every_batches = 4, .asynchronous = false}),
            Breaks(9)));
  });
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    const History history = rig.trainer.Fit(
        rig.train, {.epochs = 3}, Callbacks(BackupAndRestore({.folder = folder.path()})));
    if (rig.world.rank() == 0) resumed = history;
  });
  CHECK(errors == Nothing(2));
  REQUIRE(resumed.epochs == std::vector<uint64_t>{1, 2});
  for (size_t i = 0; i < 2; ++i) {
    CHECK(resumed.Of("loss")[i] == Approx(whole.Of("loss")[i + 1]).epsilon(1e-4));
    CHECK(resumed.Of("accuracy")[i] == whole.Of("accuracy")[i + 1]);
  }
}

TEST_CASE("a checkpoint keeps the loss scale") {
  const auto errors = OnTrainingRanks(1, [&](TrainingRig& rig) {
    const LossScale scale{4096, 7, 2};
    Run saved(rig.replica, {}), resumed(rig.replica, {}), without(rig.replica, {});
    saved.loss_scale = scale;
    Metadata remarks = RemarksOf(saved);
    ResumeFrom(resumed, remarks);
    Expect(resumed.loss_scale == scale, "the scale that was saved");
    ResumeFrom(resumed, RemarksOf(without));
    Expect(resumed.loss_scale == scale, "an old checkpoint leaves it");
    remarks["loss_scale"] = "0.5";
    ResumeFrom(resumed, remarks);
  });
  CHECK(
      errors ==
      std::vector<std::string>{
          "the checkpoint says 'loss_scale' is 0.5, expected a finite number, 1 or more"});
}

TEST_CASE("a checkpoint with more epochs than requested leaves no epoch to train") {
  TemporaryFolder folder;
  const auto options = [&](Print print) {
    return BackupAndRestoreOptions{
        .folder = folder.path(), .delete_at_end = false, .print = std::move(print)};
  };
  std::string line;
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    rig.trainer.Fit(rig.train, {.epochs = 2}, Callbacks(BackupAndRestore(options({}))));
    const History history = rig.trainer.Fit(
        rig.train, {.epochs = 1},
        Callbacks(BackupAndRestore(options([&](const std::string& said) { line = said; }))));
    Expect(history.epochs.empty(), "no epoch");
    Expect(rig.replica.step() == 12, "no step");
  });
  CHECK(errors == Nothing(2));
  CHECK_THAT(line, Catch::EndsWith("its 2 epochs are more than wanted, nothing is left to train"));
}

TEST_CASE("a checkpoint of another model is refused on all ranks with exit code 66") {
  TemporaryFolder folder;
  std::vector<int> exit_codes(2);
  OnTrainingRanks(2, [&](TrainingRig& rig) {
    rig.trainer.Fit(
        rig.train, {.epochs = 1},
        Callbacks(BackupAndRestore({.folder = folder.path(), .delete_at_end = false})));
  });
  const auto errors = testing::OnRanks(2, [&](Communicator& world) {
    omp_set_num_threads(1);
    Sequential model({1, 1, 4}, Layers(Dense(3)), {});
    Adam optimizer(model.parameters(), {});
    Replica replica(world, model, optimizer);
    const SparseCategoricalCrossentropy loss;
    Trainer trainer(replica, loss);
    PipelineBatches data(DistributedPipeline(world, ToyPoints().Batch(kGlobalBatch)));
    try {
      trainer.Fit(data, {}, Callbacks(BackupAndRestore({.folder = folder.path()})));
    } catch (const AgreedError& error) {
      exit_codes[static_cast<size_t>(world.rank())] = error.exit_code();
      throw;
    }
  });
  CHECK(errors[0] == errors[1]);
  CHECK_THAT(errors[0], Catch::Contains("layer0.dense.kernel"));
  CHECK(exit_codes == std::vector<int>{kDataUnusable, kDataUnusable});
}

}  // namespace
}  // namespace dtrun::models
