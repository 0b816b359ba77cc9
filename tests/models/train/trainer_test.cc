#include "models/train/trainer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/callbacks/checkpoints.h"
#include "models/train/agreement.h"
#include "models/train/steps.h"
#include "tests/models/train/training_rig.h"
#include "tests/support/subprocess.h"

namespace dtrun::models {
namespace {

using dtrun::testing::Expect;
using dtrun::testing::Nothing;

History FitOn(int ranks, const FitOptions& options) {
  History history;
  const auto errors = OnTrainingRanks(ranks, [&](TrainingRig& rig) {
    FitOptions mine = options;
    mine.validation_data = &rig.test;
    const History of_rank = rig.trainer.Fit(rig.train, mine);
    if (rig.world.rank() == 0) history = of_rank;
  });
  REQUIRE(errors == Nothing(ranks));
  return history;
}

TEST_CASE("fit learns and 1 and 2 and 3 and 5 replicas have the same curve") {
  const History expected = FitOn(1, {.epochs = 8});
  REQUIRE(expected.epochs == std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(expected.Of("val_accuracy").back() > 0.9);
  CHECK(expected.Of("loss").back() < expected.Of("loss").front());
  CHECK(expected.Of("learning_rate") == std::vector<double>(8, 0.02));
  CHECK(std::isnan(expected.Of("no such number")[0]));
  for (int ranks : {2, 3, 5}) {
    const History history = FitOn(ranks, {.epochs = 8});
    for (const char* name : {"loss", "accuracy", "val_loss", "val_accuracy"}) {
      INFO(name << " on " << ranks << " ranks");
      for (size_t epoch = 0; epoch < 8; ++epoch)
        CHECK(history.Of(name)[epoch] == Approx(expected.Of(name)[epoch]).margin(1e-4));
    }
  }
}

TEST_CASE("fit respects initial_epoch and steps_per_epoch and max_steps") {
  CHECK(FitOn(2, {.epochs = 3, .initial_epoch = 2}).epochs == std::vector<uint64_t>{2});
  CHECK(FitOn(2, {.epochs = 3, .initial_epoch = 3}).epochs.empty());
  OnTrainingRanks(2, [](TrainingRig& rig) {
    rig.trainer.Fit(rig.train, {.epochs = 2, .steps_per_epoch = 4});
    Expect(rig.replica.step() == 8, "4 steps in each of 2 epochs");
    const History history = rig.trainer.Fit(rig.train, {.epochs = 9, .max_steps = 15});
    Expect(rig.replica.step() == 15, "steps up to 15");
    Expect(history.epochs.size() == 2, "the second epoch was cut short");
  });
}

TEST_CASE("every loop computes the same bits as fit") {
  const auto errors = OnTrainingRanks(3, [](TrainingRig& rig) {
    rig.trainer.Fit(rig.train, {.epochs = 2});
    const std::vector<float> expected = rig.Weights();
    for (int loop = 0; loop < 3; ++loop) {
      TrainingRig own(rig.world);
      Mean mean_loss;
      Metric* const metrics[] = {&mean_loss};
      uint64_t epoch = 0;
      if (loop == 0) {
        for (; epoch < 2; ++epoch) {
          own.train.StartEpoch(epoch);
          ForEachBatch(own.replica, own.train, own.loss, metrics);
        }
      } else if (loop == 1) {
        TrainSteps(own.replica, own.train, 12, own.loss, metrics, &epoch);
        Expect(epoch == 1, "the second epoch");
      } else {
        for (; epoch < 2; ++epoch) TrainEpoch(own.replica, own.train, epoch, own.loss, metrics);
      }
      Expect(own.Weights() == expected, "equal weights");
    }
  });
  CHECK(errors == Nothing(3));
}

TEST_CASE("replicas return parts of the loss that add up") {
  const auto errors = OnTrainingRanks(3, [](TrainingRig& rig) {
    Mean mean_loss;
    Metric* const metrics[] = {&mean_loss};
    double sum = TrainEpoch(rig.replica, rig.train, 0, rig.loss, metrics);
    rig.world.AllReduce(Buffer(&sum, 1));
    SumOverRanks(rig.world, metrics);
    Expect(mean_loss.weight() == double{kExamples}, "every example once");
    Expect(std::abs(sum / 6 - mean_loss.Result()) < 0.1, "near the mean of the batches");
  });
  CHECK(errors == Nothing(3));
}

TEST_CASE("evaluate does not train and counts every example once") {
  const auto errors = OnTrainingRanks(4, [](TrainingRig& rig) {
    const std::vector<float> before = rig.Weights();
    const Logs first = rig.trainer.Evaluate(rig.test), again = rig.trainer.Evaluate(rig.test);
    Expect(first == again, "the same twice: no dropout");
    Expect(rig.Weights() == before, "no training");
    Expect(rig.trainer.metrics()[0]->state()[1] == double{kExamples}, "every example once");
  });
  CHECK(errors == Nothing(4));
}

LayerList Synchronized() { return NormalizedLayers(true); }
LayerList NotSynchronized() { return NormalizedLayers(false); }

// A bias before a normalization has only rounding errors as its gradient. Adam makes steps of them,
// and the moving averages follow the bias. So val_loss is compared at a rate near zero.
TEST_CASE("with synchronized batch normalization 2 and 3 and 5 replicas have the same curve") {
  const bool learns = GENERATE(true, false);
  const auto fit = [&](int ranks) {
    History history;
    const auto errors = OnTrainingRanks(
        ranks,
        [&](TrainingRig& rig) {
          if (!learns) rig.optimizer.set_learning_rate(1e-9);
          const History of_rank =
              rig.trainer.Fit(rig.train, {.epochs = 4, .validation_data = &rig.test});
          if (rig.world.rank() == 0) history = of_rank;
        },
        Synchronized);
    REQUIRE(errors == Nothing(ranks));
    return history;
  };
  const History expected = fit(2);
  for (int ranks : {3, 5}) {  // some get none of the last batch's 2 examples
    const History history = fit(ranks);
    const std::string name = learns ? "loss" : "val_loss";
    INFO(name << " on " << ranks << " ranks");
    for (size_t epoch = 0; epoch < 4; ++epoch)
      CHECK(
          history.Of(name)[epoch] == Approx(expected.Of(name)[epoch]).margin(learns ? 1e-3 : 1e-5));
  }
}

TEST_CASE("evaluation has the same buffers on all ranks and includes the regularization loss") {
  std::vector<std::vector<float>> weights(2);
  const auto errors = OnTrainingRanks(
      2,
      [&](TrainingRig& rig) {
        const History history = rig.trainer.Fit(rig.train, {.epochs = 1});
        const Logs logs = rig.trainer.Evaluate(rig.test);
        weights[static_cast<size_t>(rig.world.rank())] = rig.Weights();
        const double penalty = rig.model.RegularizationLoss();
        Expect(penalty > 0.01, "a penalty");
        const std::vector<float> outputs = rig.trainer.Predict(rig.test);
        std::vector<double> losses(kExamples);
        std::vector<int32_t> labels;
        for (uint64_t i = 0; i < kExamples; ++i) labels.push_back(static_cast<int32_t>(i % 3));
        rig.loss.PerExample({outputs.data(), kExamples, 3}, {.labels = labels}, losses);
        double mean = 0;
        for (const double loss : losses) mean += loss / double{kExamples};
        Expect(std::abs(logs.at("loss") - mean - penalty) < 1e-6, "loss and penalty");
      },
      NotSynchronized);
  CHECK(errors == Nothing(2));
  CHECK(weights[0] == weights[1]);
}

TEST_CASE("predictions are in the order of the data on all ranks or only on rank 0") {
  std::vector<float> expected;
  OnTrainingRanks(1, [&](TrainingRig& rig) { expected = rig.trainer.Predict(rig.test); });
  REQUIRE(expected.size() == kExamples * 3);
  const auto errors = OnTrainingRanks(3, [&](TrainingRig& rig) {
    const std::vector<float> outputs = rig.trainer.Predict(rig.test);
    Expect(outputs.size() == expected.size(), "as many");
    for (size_t i = 0; i < outputs.size(); ++i)
      Expect(std::abs(outputs[i] - expected[i]) < 1e-5f, "output " + std::to_string(i));
    const std::vector<float> on_one = rig.trainer.Predict(rig.test, PredictTo::kRank0);
    Expect(on_one == (rig.world.rank() == 0 ? outputs : std::vector<float>{}), "rank 0 alone");
  });
  CHECK(errors == Nothing(3));
}

// Fails on one rank in a chosen call.
class Failing : public Callback {
 public:
  enum class Turn { kTrainBegin, kBatchBegin, kBatchEnd, kTestEnd, kEpochEnd, kTrainEnd };
  Failing(Turn turn, int rank) : turn_(turn), rank_(rank) {}
  std::string name() const override { return "Failing"; }
  void OnTrainBegin(Run& run) override { FailAt(Turn::kTrainBegin, run); }
  void OnBatchBegin(Run& run) override { FailAt(Turn::kBatchBegin, run); }
  void OnBatchEnd(Run& run, const Logs&) override { FailAt(Turn::kBatchEnd, run); }
  void OnTestEnd(Run& run, const Logs&) override { FailAt(Turn::kTestEnd, run); }
  void OnEpochEnd(Run& run, Logs&) override { FailAt(Turn::kEpochEnd, run); }
  void OnTrainEnd(Run& run, const Logs&) override { FailAt(Turn::kTrainEnd, run); }

 private:
  void FailAt(Turn turn, Run& run) const {
    if (turn == turn_ && run.world().rank() == rank_) throw std::runtime_error("no more");
  }
  Turn turn_;
  int rank_;
};

TEST_CASE("an exception of a callback on one rank ends training on all ranks in any call") {
  using Turn = Failing::Turn;
  const Turn turn = GENERATE(
      Turn::kTrainBegin, Turn::kBatchBegin, Turn::kBatchEnd, Turn::kTestEnd, Turn::kEpochEnd,
      Turn::kTrainEnd);
  const auto errors = OnTrainingRanks(3, [&](TrainingRig& rig) {
    rig.trainer.Fit(
        rig.train, {.epochs = 2, .validation_data = &rig.test}, Callbacks(Failing(turn, 1)));
  });
  CHECK(errors == OnAll(3, "rank 1: Failing: no more"));
}

// A data source that fails on one rank in the third batch.
class Torn : public BatchSource {
 public:
  Torn(BatchSource& whole, int rank) : whole_(whole), rank_(rank) {}
  uint64_t steps_per_epoch() const override { return whole_.steps_per_epoch(); }
  void StartEpoch(uint64_t epoch, uint64_t first) override { whole_.StartEpoch(epoch, first); }
  bool Next(ReplicaBatch& batch) override {
    if (++batches_ == 3 && rank_ == 2) throw std::runtime_error("images: cannot be read");
    return whole_.Next(batch);
  }

 private:
  BatchSource& whole_;
  int rank_, batches_ = 0;
};

TEST_CASE("unreadable data on one rank ends training on all ranks even in synchronizing layers") {
  const auto layers = GENERATE(PlainLayers, Synchronized);
  const auto errors = OnTrainingRanks(
      3,
      [](TrainingRig& rig) {
        Torn torn(rig.train, rig.world.rank());
        rig.trainer.Fit(torn, {.epochs = 1});
      },
      layers);
  CHECK(errors == OnAll(3, "rank 2: images: cannot be read"));
}

// Sets a weight of rank 1 to NaN before step 3.
class Poison : public Callback {
 public:
  std::string name() const override { return "Poison"; }
  void OnBatchBegin(Run& run) override {
    if (run.position.step != 2 || run.world().rank() != 1) return;
    *static_cast<float*>(run.model().parameters()[0].value.data) =
        std::numeric_limits<float>::quiet_NaN();
  }
};

TEST_CASE("a loss that is not a number is reported with step and rank on all ranks") {
  // Callbacks that communicate run on the other rank only.
  const bool saves = GENERATE(false, true);
  const dtrun::testing::TemporaryFolder folder;
  std::vector<int> exit_codes(2);
  const auto errors = OnTrainingRanks(2, [&](TrainingRig& rig) {
    const CallbackList callbacks =
        saves ? Callbacks(
                    Poison(), Throughput(),
                    BackupAndRestore({.folder = folder.path(), .every_batches = 1}))
              : Callbacks(Poison());
    try {
      rig.trainer.Fit(rig.train, {.epochs = 1}, callbacks);
    } catch (const AgreedError& error) {
      exit_codes[static_cast<size_t>(rig.world.rank())] = error.exit_code();
      throw;
    }
  });
  CHECK(
      errors ==
      OnAll(
          2,
          "rank 1: the loss is nan in step 3 (epoch 1, batch 3): training has diverged; a lower "
          "learning rate or a warm-up may help"));
  CHECK(exit_codes == std::vector<int>{kDiverged, kDiverged});
}

// Asks to stop on rank 1.
class StopsAt : public Callback {
 public:
  explicit StopsAt(uint64_t step) : step_(step) {}
  std::string name() const override { return "StopsAt"; }
  void OnBatchEnd(Run& run, const Logs&) override {
    if (run.position.step == step_ && run.world().rank() == 1) run.StopTraining();
  }

 private:
  uint64_t step_;
};

TEST_CASE("training stops on all ranks after the batch in which one rank asks for it") {
  const auto errors = OnTrainingRanks(3, [](TrainingRig& rig) {
    const History history = rig.trainer.Fit(rig.train, {.epochs = 3}, Callbacks(StopsAt(8)));
    Expect(rig.replica.step() == 8, "8 steps");
    Expect(history.epochs.size() == 2, "a whole epoch and a part of one");
  });
  CHECK(errors == Nothing(3));
}

// A loss with a gradient that overflows in one pass.
struct OverflowingLoss : SparseCategoricalCrossentropy {
  void Gradient(
      const Outputs& outputs, const Targets& targets, std::span<const float> factors,
      float* gradient) const override {
    SparseCategoricalCrossentropy::Gradient(outputs, targets, factors, gradient);
    if (passes_left-- == 0) gradient[0] = std::numeric_limits<float>::infinity();
  }
  mutable int passes_left = -1;
};

TEST_CASE("a scaled loss trains with the same bits, and one rank's overflow skips a step on all") {
  CHECK(testing::OnRanks(3, [](Communicator& world) {
          omp_set_num_threads(1);
          const ReplicaOptions options{
              .loss_scale = LossScaleOptions{.initial_scale = 256, .growth_interval = 4}};
          TrainingRig plain(world, NormalizedLayers(true));
          TrainingRig scaled(world, NormalizedLayers(true), options);
          plain.trainer.Fit(plain.train, {.epochs = 1, .max_steps = 6});
          scaled.trainer.Fit(scaled.train, {.epochs = 1, .max_steps = 6});
          Expect(scaled.Weights() == plain.Weights(), "the bits of training without a scale");
          Expect(scaled.replica.loss_scale() == LossScale{512, 2, 0}, "it has grown once");

          OverflowingLoss loss;
          if (world.rank() == 2) loss.passes_left = 1;
          const float before = scaled.Weights()[0];
          const uint64_t steps_before = scaled.replica.step();
          Trainer trainer(scaled.replica, loss);
          trainer.Fit(scaled.train, {.epochs = 2, .initial_epoch = 1, .max_steps = 9});
          Expect(scaled.replica.step() > steps_before, "training goes on");
          Expect(scaled.replica.loss_scale().skipped_steps == 1, "one skipped step on all ranks");
          std::vector<float> weights = scaled.Weights();
          Expect(weights[0] != before && std::isfinite(weights[0]), "later steps train");
          std::vector<float> first = weights;
          world.Broadcast(Buffer(first.data(), first.size()), 0);
          Expect(weights == first, "the same weights on all ranks");
        }) == Nothing(3));
}

TEST_CASE("a loss that does not fit the network and metrics of equal names are refused") {
  const auto errors = OnTrainingRanks(1, [](TrainingRig& rig) {
    const SparseCategoricalCrossentropy loss(SparseCategoricalCrossentropy::From::kProbabilities);
    Trainer trainer(rig.replica, loss);
  });
  CHECK_THAT(errors[0], Catch::Contains("from probabilities after the last layer (dense 3)"));
  const auto same_name = OnTrainingRanks(1, [](TrainingRig& rig) {
    Trainer trainer(rig.replica, rig.loss, MakeMetrics(TopK(2, "loss")));
  });
  CHECK(same_name[0] == "two metrics are called 'loss', expected different names");
}

TEST_CASE("complaints are combined with the ranks that have them") {
  const Complaint x{ErrorCode::kSystem, 66, "x"}, y{ErrorCode::kSystem, 2, "y"};
  CHECK(CombineComplaints({{}, x, x}).text == "ranks 1 and 2: x");
  CHECK(CombineComplaints({x, y, x}).text == "ranks 0 and 2: x");
  CHECK(CombineComplaints({x, x}).text == "x");
  CHECK(CombineComplaints({{}, y}).exit_code == 2);
}

}  // namespace
}  // namespace dtrun::models
