#include "models/callbacks/callbacks.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "models/callbacks/callback.h"
#include "models/callbacks/example_log.h"
#include "models/callbacks/log_values.h"
#include "models/callbacks/progress_bar.h"
#include "models/callbacks/tensorboard.h"
#include "tests/models/train/training_rig.h"
#include "tests/support/subprocess.h"

namespace dtrun::models {
namespace {

using dtrun::testing::Expect;
using dtrun::testing::Nothing;
using Lines = std::vector<std::string>;

// Records the calls of a callback.
class Recorder : public Callback {
 public:
  explicit Recorder(Lines& lines) : lines_(lines) {}
  std::string name() const override { return "Recorder"; }
  void OnTrainBegin(Run&) override { lines_.push_back("train begins"); }
  void OnTrainEnd(Run&, const Logs&) override { lines_.push_back("train ends"); }
  void OnEpochBegin(Run&) override { lines_.push_back("epoch begins"); }
  void OnEpochEnd(Run& run, Logs& logs) override {
    lines_.push_back("epoch ends");
    Expect(logs.count("val_loss") == 1 && logs.count("accuracy") == 1, "logs of an epoch");
    Expect(run.position.epoch == 1 && run.position.batch == 0, "one epoch is done");
  }
  void OnBatchBegin(Run& run) override {
    lines_.push_back("batch " + std::to_string(run.position.batch) + " begins");
  }
  void OnBatchEnd(Run&, const Logs& logs) override {
    lines_.push_back("batch ends");
    Expect(logs.count("loss") == 1, "logs of a batch");
  }
  void OnTestBegin(Run& run) override {
    lines_.push_back(run.validating ? "validation begins" : "test begins");
  }
  void OnTestEnd(Run&, const Logs&) override { lines_.push_back("test ends"); }
  void OnTestBatchBegin(Run&) override { lines_.push_back("test batch begins"); }
  void OnTestBatchEnd(Run&, const Logs&) override { lines_.push_back("test batch ends"); }
  void OnPredictBegin(Run&) override { lines_.push_back("predict begins"); }
  void OnPredictEnd(Run&) override { lines_.push_back("predict ends"); }
  void OnPredictBatchBegin(Run&) override { lines_.push_back("predict batch begins"); }
  void OnPredictBatchEnd(Run&) override { lines_.push_back("predict batch ends"); }

 private:
  Lines& lines_;
};

Lines WithBatches(Lines lines, const std::string& what, int batches, const std::string& end) {
  for (int i = 0; i < batches; ++i) lines.insert(lines.end(), {what + " begins", what + " ends"});
  lines.push_back(end);
  return lines;
}

TEST_CASE("callbacks are called in order") {
  Lines fit, test, predict;
  OnTrainingRanks(1, [&](TrainingRig& rig) {
    rig.trainer.Fit(
        rig.train, {.epochs = 1, .steps_per_epoch = 2, .validation_data = &rig.test},
        Callbacks(Recorder(fit)));
    rig.trainer.Evaluate(rig.test, Callbacks(Recorder(test)));
    rig.trainer.Predict(rig.test, PredictTo::kAllRanks, Callbacks(Recorder(predict)));
  });
  Lines expected = WithBatches(
      {"train begins", "epoch begins", "batch 0 begins", "batch ends", "batch 1 begins",
       "batch ends", "validation begins"},
      "test batch", 6, "test ends");
  expected.insert(expected.end(), {"epoch ends", "train ends"});
  CHECK(fit == expected);
  CHECK(test == WithBatches({"test begins"}, "test batch", 6, "test ends"));
  CHECK(predict == WithBatches({"predict begins"}, "predict batch", 6, "predict ends"));
}

// Records the learning rate at the beginning of each batch.
class Rates : public Callback {
 public:
  explicit Rates(std::vector<double>& rates) : rates_(rates) {}
  std::string name() const override { return "Rates"; }
  void OnBatchBegin(Run& run) override { rates_.push_back(run.learning_rate()); }

 private:
  std::vector<double>& rates_;
};

TEST_CASE("a schedule sets the rate at the beginning of each epoch and rank 0 prints the rate") {
  Lines lines;
  std::vector<double> rates;
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    std::vector<double> mine;
    rig.trainer.Fit(
        rig.train, {.epochs = 3, .steps_per_epoch = 1},
        Callbacks(
            LearningRateScheduler(
                [](uint64_t epoch, double rate) { return epoch == 0 ? 0.5 : rate / 2; },
                [&](const std::string& line) { lines.push_back(line); }),
            Rates(mine)));
    if (rig.world.rank() == 0) rates = mine;
  });
  CHECK(errors == Nothing(2));
  CHECK(rates == std::vector<double>{0.5, 0.25, 0.125});
  CHECK(lines.size() == 3);
  CHECK(lines[1] == "Epoch 2: LearningRateScheduler setting learning rate to 0.25");
}

TEST_CASE("a schedule without a valid rate is an error that names the epoch") {
  const auto errors = OnTrainingRanks(2, [](TrainingRig& rig) {
    const auto schedule = [](uint64_t epoch, double) { return epoch == 1 ? -1.0 : 0.1; };
    rig.trainer.Fit(rig.train, {.epochs = 3}, Callbacks(LearningRateScheduler(schedule)));
  });
  CHECK(
      errors == OnAll(
                    2,
                    "LearningRateScheduler: the schedule gave -1 for epoch 1, expected a learning "
                    "rate above 0"));
}

TEST_CASE("the warm-up ends at the base rate times the number of ranks") {
  std::vector<double> rates;
  OnTrainingRanks(4, [&](TrainingRig& rig) {
    std::vector<double> mine;
    rig.trainer.Fit(
        rig.train, {.epochs = 3, .steps_per_epoch = 2},
        Callbacks(LearningRateWarmup({.base_rate = 0.01, .epochs = 2}), Rates(mine)));
    if (rig.world.rank() == 0) rates = mine;
  });
  REQUIRE(rates.size() == 6);
  const std::vector<double> expected = {0.01, 0.0175, 0.025, 0.0325, 0.04, 0.04};
  for (size_t i = 0; i < 6; ++i) CHECK(rates[i] == Approx(expected[i]));
  CHECK_THROWS_WITH(
      LearningRateWarmup({.epochs = 0}), "LearningRateWarmup: epochs is 0, expected at least 1");
}

// Puts a given number into each epoch's logs.
class Says : public Callback {
 public:
  Says(std::string name, std::vector<double> values)
      : name_(std::move(name)), values_(std::move(values)) {}
  std::string name() const override { return "Says"; }
  void OnEpochEnd(Run& run, Logs& logs) override {
    logs[name_] = values_.at(run.position.epoch - 1) + run.world().rank();
  }

 private:
  std::string name_;
  std::vector<double> values_;
};

// Keeps the weights at the end of one epoch.
class Keeps : public Callback {
 public:
  Keeps(uint64_t epoch, std::vector<float>& weights, TrainingRig& rig)
      : epoch_(epoch), weights_(weights), rig_(rig) {}
  std::string name() const override { return "Keeps"; }
  void OnEpochEnd(Run& run, Logs&) override {
    if (run.position.epoch == epoch_) weights_ = rig_.Weights();
  }

 private:
  uint64_t epoch_;
  std::vector<float>& weights_;
  TrainingRig& rig_;
};

TEST_CASE("early stopping waits for its patience and restores the best weights") {
  Lines lines;
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    std::vector<float> best;
    const History history = rig.trainer.Fit(
        rig.train, {.epochs = 9},
        Callbacks(
            Says("score", {5, 3, 3, 2.95, 1, 0}), Keeps(2, best, rig),
            EarlyStopping(
                {.monitor = "score",
                 .min_delta = 0.1,
                 .patience = 2,
                 .restore_best_weights = true,
                 .print = [&](const std::string& line) { lines.push_back(line); }})));
    Expect(history.epochs.size() == 4, "4 epochs");
    Expect(rig.Weights() == best, "the weights of the second epoch");
  });
  CHECK(errors == Nothing(2));
  CHECK(
      lines == Lines{"EarlyStopping: score has not improved for 2 epochs; best was 3 in epoch 2"});
}

TEST_CASE("an unknown number to monitor is refused with the numbers in the logs") {
  const auto errors = OnTrainingRanks(2, [](TrainingRig& rig) {
    rig.trainer.Fit(rig.train, {.epochs = 2}, Callbacks(EarlyStopping({.monitor = "val_los"})));
  });
  CHECK(
      errors == OnAll(
                    2,
                    "EarlyStopping: monitor: 'val_los' is not in the logs, expected one of "
                    "accuracy, learning_rate, loss"));
  CHECK_THROWS_WITH(EarlyStopping({.min_delta = -1}), "min_delta: -1, expected 0 or more");
}

TEST_CASE("larger accuracies and smaller losses are better and NaN never is") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Monitor accuracy("val_accuracy", MonitorMode::kAuto), loss("val_loss", MonitorMode::kAuto);
  CHECK(accuracy.IsBetter(0.6, 0.5));
  CHECK(!accuracy.IsBetter(0.5, 0.5));
  CHECK(loss.IsBetter(0.4, 0.5));
  CHECK(!loss.IsBetter(nan, loss.worst()));
  CHECK(Monitor("error", MonitorMode::kMax).IsBetter(2, 1));
}

TEST_CASE("numbers are averaged over ranks and the weights of one rank can be broadcast") {
  const auto errors = OnTrainingRanks(3, [](TrainingRig& rig) {
    static_cast<float*>(rig.model.parameters()[0].value.data)[0] =
        static_cast<float>(rig.world.rank());
    const History history = rig.trainer.Fit(
        rig.train, {.epochs = 1, .max_steps = 1},
        Callbacks(BroadcastVariables(2), Says("memory", {10}), MetricAverage()));
    Expect(history.logs[0].at("memory") == 11, "the mean of 10, 11 and 12");
    std::vector<float> weights = rig.Weights(), of_rank_0 = weights;
    rig.world.Broadcast(Buffer(of_rank_0.data(), of_rank_0.size()), 0);
    Expect(weights == of_rank_0, "equal weights");
    Expect(std::abs(weights[0] - 2) < 0.1f, "those of rank 2, and one step");
  });
  CHECK(errors == Nothing(3));
}

TEST_CASE("throughput counts the examples of all ranks and step losses are of global batches") {
  std::vector<std::vector<double>> losses(3);
  const auto errors = OnTrainingRanks(3, [&](TrainingRig& rig) {
    const History history = rig.trainer.Fit(
        rig.train, {.epochs = 2},
        Callbacks(Throughput(), StepLosses(losses[static_cast<size_t>(rig.world.rank())])));
    const Logs& logs = history.logs[1];
    Expect(
        std::abs(logs.at("images_per_s") * logs.at("seconds") - double{kExamples}) < 1e-6,
        "42 examples");
    Expect(logs.at("exposed_share") > 0 && logs.at("exposed_share") <= 1, "a share");
  });
  CHECK(errors == Nothing(3));
  CHECK(losses[0].size() == 12);
  CHECK(losses[1] == losses[0]);
}

std::vector<std::string> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("the log of examples has every example of an epoch once") {
  const testing::TemporaryFolder folder;
  const std::string logs = folder.path() + "/a/logs";
  const auto errors = OnTrainingRanks(3, [&](TrainingRig& rig) {
    rig.trainer.Fit(rig.train, {.epochs = 2}, Callbacks(ExampleLog(logs, 7)));
  });
  CHECK(errors == Nothing(3));
  std::multiset<uint64_t> of_epochs[2];
  std::map<uint64_t, std::set<uint64_t>> positions;  // by step
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<std::string> lines = LinesOf(logs + "/examples.7." + std::to_string(rank));
    CHECK(lines.size() == 12);
    for (const std::string& line : lines) {
      std::istringstream words(line);
      uint64_t epoch = 9, step = 0, batch = 0, position = 0;
      words >> epoch >> step >> batch >> position;
      REQUIRE(epoch < 2);
      CHECK(batch == (step % 6 == 5 ? 2 : 8));
      for (uint64_t number; words >> number; ++position) {
        of_epochs[epoch].insert(number);
        CHECK(positions[step].insert(position).second);
      }
    }
  }
  for (const auto& examples : of_epochs) {
    CHECK(examples.size() == kExamples);
    CHECK(std::set<uint64_t>(examples.begin(), examples.end()).size() == kExamples);
  }
  CHECK(positions.size() == 12);
}

TEST_CASE("a log of examples that one rank cannot make ends the training with the rank's name") {
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() + "/examples.0.1");  // where a file belongs
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    rig.trainer.Fit(rig.train, {}, Callbacks(ExampleLog(folder.path(), 0)));
  });
  CHECK(
      errors == OnAll(
                    2, "ExampleLog: rank 1: " + folder.path() +
                           "/examples.0.1: cannot be written: Is a directory"));
}

TEST_CASE("a full disk ends the log of examples and not the training") {
  const testing::TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder.path() + "/examples.0.1");
  Lines printed;
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    const Print print = [&](const std::string& line) { printed.push_back(line); };
    const History history =
        rig.trainer.Fit(rig.train, {}, Callbacks(ExampleLog(folder.path(), 0, print)));
    Expect(history.epochs.size() == 1, "training ended well");
    Expect(history.not_written.size() == 1, "the history has the problem");
  });
  CHECK(errors == Nothing(2));
  CHECK(
      printed == Lines{
                     "rank 1: " + folder.path() +
                     "/examples.0.1: the log of examples ends early: No space left on device"});
}

TEST_CASE("names are filled with numbers of the logs in Python's formats") {
  const Logs logs = {{"epoch", 3}, {"val_loss", 0.4567}};
  CHECK(FillIn("ckpt_{epoch}", logs) == "ckpt_3");
  CHECK(FillIn("{epoch:02d}-{val_loss:.2f}", logs) == "03-0.46");
  CHECK(FillIn("plain", logs) == "plain");
  CHECK(FillIn("{step}", {{"step", 12345678}}) == "12345678");
  CHECK(FillIn("{val_loss:e}", logs) == "4.567000e-01");
  CHECK_THROWS_WITH(
      FillIn("c{loss}", logs),
      "the name 'c{loss}': {loss} is not known, expected one of epoch, val_loss");
  CHECK_THROWS_WITH(
      FillIn("{epoch:x}", logs),
      "the name '{epoch:x}': the format ':x', expected one like :02d or "
      ":.2f");
  CHECK_THROWS_WITH(
      FillIn("{val_loss:d}", logs),
      "the name '{val_loss:d}': the format ':d' of 0.4567, expected a whole number");
  CHECK_THROWS_WITH(FillIn("a{epoch", logs), "the name 'a{epoch': a '{' without '}'");
}

// The number of event files in a folder, and their contents.
std::pair<int, std::string> EventsIn(const std::string& folder) {
  std::pair<int, std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    found.second.append(std::istreambuf_iterator<char>(stream), {});
    ++found.first;
  }
  return found;
}

TEST_CASE("TensorBoard's tags and folders are the same as in Keras and only rank 0 writes") {
  testing::TemporaryFolder folder;
  const std::string logs = folder.path() + "/logs";
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    rig.trainer.Fit(
        rig.train, {.epochs = 1, .steps_per_epoch = 2, .validation_data = &rig.test},
        Callbacks(TensorBoard(
            {.log_dir = logs, .update_every_batches = 2, .histogram_every_epochs = 1})));
  });
  CHECK(errors == Nothing(2));
  const auto [train_files, train] = EventsIn(logs + "/train");
  const auto [validation_files, validation] = EventsIn(logs + "/validation");
  CHECK(train_files == 1);
  CHECK(validation_files == 1);
  for (const char* tag :
       {"epoch_loss", "epoch_accuracy", "epoch_learning_rate", "batch_loss",
        "layer0.dense.kernel/histogram"}) {
    INFO(tag);
    CHECK(train.find(tag) != std::string::npos);
    CHECK(validation.find("epoch_learning_rate") == std::string::npos);
  }
  for (const char* tag : {"epoch_loss", "epoch_accuracy", "evaluation_loss_vs_iterations"}) {
    INFO(tag);
    CHECK(validation.find(tag) != std::string::npos);
  }
}

class Throws : public Callback {
 public:
  std::string name() const override { return "Throws"; }
  void OnBatchEnd(Run&, const Logs&) override { throw Error(ErrorCode::kSystem, "in a batch"); }
};

TEST_CASE("TensorBoard's session has the command, and fails if training ends by an error") {
  testing::TemporaryFolder folder;
  const std::string logs = folder.path() + "/logs";
  const bool fails = GENERATE(false, true);
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    CallbackList callbacks = Callbacks(
        TensorBoard({.log_dir = logs, .hparams = {{"ranks", 2.0}}, .command = "train --epochs 1"}));
    if (fails) callbacks.push_back(std::make_unique<Throws>());
    rig.trainer.Fit(rig.train, {.epochs = 1, .steps_per_epoch = 2}, callbacks);
  });
  CHECK((errors == Nothing(2)) == !fails);
  const auto [files, session] = EventsIn(logs);
  CHECK(files == 1);
  CHECK(session.find("    train --epochs 1") != std::string::npos);
  CHECK(session.find("_hparams_/session_start_info") != std::string::npos);
  CHECK(session.find("hparam/val_loss") != std::string::npos);
  // SessionEndInfo: field 1, a varint, is the status.
  const size_t end = session.find("_hparams_/session_end_info");
  REQUIRE(end != std::string::npos);
  CHECK(
      session.find(std::string("\x08") + (fails ? '\2' : '\1') + '\x11', end) != std::string::npos);
}

TEST_CASE("a progress line fits the terminal") {
  const Logs logs = {{"accuracy", 0.8}, {"loss", 0.25}};
  const EpochProgress progress{2, 8, 5, 10, 0, 100, 2.0};
  CHECK(
      ProgressLine(progress, logs, 200) ==
      "Epoch 2/8 5/10 [============>...........] 2 s left, loss 0.2500, accuracy 0.8000, 50 "
      "images/s");
  CHECK(ProgressLine(progress, logs, 21) == "Epoch 2/8 5/10 [====");
}

TEST_CASE("an epoch's line has the loss first and validation after training") {
  Logs logs = {{"accuracy", 0.8}, {"loss", 0.25}, {"val_accuracy", 0.5}, {"val_loss", 1}};
  CHECK(
      EpochLine(1, 8, logs, 1) ==
      "Epoch 1/8: loss 0.2500, accuracy 0.8000, val_loss 1.0000, val_accuracy 0.5000");
  logs["seconds"] = 2;
  logs["images_per_s"] = 100;
  logs["exposed_share"] = 0.125;
  CHECK_THAT(
      EpochLine(1, 8, logs, 2),
      Catch::EndsWith("2.0 s, 100 images/s, communication exposed 12.5 %"));
}

}  // namespace
}  // namespace dtrun::models
