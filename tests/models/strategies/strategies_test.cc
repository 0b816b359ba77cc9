// Trains networks under each strategy on threads as ranks: on one host, and on several hosts that
// exist in name only.

#include <dtrun/strategies.h>
#include <omp.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/callbacks/callbacks.h"
#include "models/callbacks/checkpoints.h"
#include "models/data/distribute.h"
#include "models/layers/activations.h"
#include "models/layers/batch_norm.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/layers/sequential.h"
#include "models/losses/loss.h"
#include "models/metrics/metric.h"
#include "models/optim/adam.h"
#include "models/optim/by_name.h"
#include "models/optim/sgd.h"
#include "models/train/batch.h"
#include "models/train/steps.h"
#include "models/train/trainer.h"
#include "tests/runtime/sharded_ranks.h"
#include "tests/support/subprocess.h"

// The thread sanitizer does not see how oneDNN's cache of primitives orders the threads that share
// an entry, because the library is not instrumented. The sanitizer calls this function by its name.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:libdnnl.so";
}

namespace dtrun::models {
namespace {

using Values = std::vector<float>;
using testing::Backend;
using testing::Expect;
using testing::Nothing;
using testing::Texts;

constexpr uint64_t kExamples = 52, kGlobalBatch = 12;  // the last batch of an epoch is ragged

// The strategy, ranks and hosts of a training.
struct Spread {
  std::string strategy;
  int ranks = 1;
  Backend backend = Backend::kShm;

  std::vector<Host> hosts() const {
    if (backend != Backend::kHosts) return {{"h0", ranks}};
    std::vector<Host> list;
    for (int first = 0; first < ranks; first += 2)
      list.push_back({Name(first / 2), std::min(2, ranks - first)});
    return list;
  }
  static std::string Name(int host) { return "h" + std::to_string(host); }
};

const Spread kOneDevice = {"one_device"};
// The distributed strategies, on equal and unequal hosts.
const std::vector<Spread> kSpreads = {
    {"mirrored", 2},
    {"mirrored", 4},
    {"central_storage", 3},
    {"central_storage", 4},
    {"multi_worker_mirrored", 3, Backend::kHosts},
    {"multi_worker_mirrored", 4, Backend::kHosts},
    {"central_storage", 3, Backend::kHosts},
    {"central_storage", 4, Backend::kHosts}};

Pipeline Pictures() {
  std::vector<float> values;
  std::vector<int32_t> labels;
  for (uint64_t i = 0; i < kExamples; ++i) {
    labels.push_back(static_cast<int32_t>(i % 3));
    for (uint64_t p = 0; p < 64; ++p) {
      const auto noise = static_cast<float>((i * 7919 + p * 104729) % 97) / 97;
      values.push_back((p / 22 == i % 3 ? 0.7f : 0.0f) + 0.3f * noise);
    }
  }
  return Pipeline::FromMemory({kExamples, 8, 8}, std::move(values), std::move(labels));
}

LayerList PictureLayers() {
  return Layers(
      Conv2D(4, 3, Activation::kRelu), MaxPool2D(), Conv2D(6, 2, Activation::kRelu), Dropout(0.25),
      Dense(3));
}

// A rank's part of a training under a strategy.
struct StrategyRig {
  StrategyRig(
      Strategy& strategy_in, const std::string& optimizer_name, double rate,
      DType dtype = DType::kF32)
      : strategy(strategy_in),
        train(strategy.DistributeDataset(
            PipelineDataset(Pictures().Shuffle({.seed = 5}).Batch(kGlobalBatch)))),
        test(strategy.DistributeDataset(PipelineDataset(Pictures().Batch(kGlobalBatch)))),
        model(
            {8, 8, 1}, PictureLayers(),
            {.micro_batch = 2, .micro_batches = 2, .seed = 3, .dtype = dtype}),
        optimizer(MakeOptimizer(
            optimizer_name, model.parameters(), model.parameter_shapes(), {.learning_rate = rate})),
        replica(strategy, model, *optimizer),
        trainer(replica, loss, MakeMetrics(SparseCategoricalAccuracy())) {}

  Values Weights() {
    Values values;
    for (const Parameter& parameter : model.parameters()) {
      const auto* value = static_cast<const float*>(parameter.value.data);
      values.insert(values.end(), value, value + parameter.value.count);
    }
    return values;
  }

  Strategy& strategy;
  StrategyBatches train, test;
  Sequential model;
  std::unique_ptr<RateOptimizer> optimizer;
  Replica replica;
  SparseCategoricalCrossentropy loss;
  Trainer trainer;
};

// Runs `rank_main` as the spread says. Returns the error of each rank.
Texts OnReplicas(const Spread& spread, const std::function<void(Strategy&)>& rank_main) {
  return testing::OnRanks(spread.ranks, spread.backend, [&](Communicator& world) {
    omp_set_num_threads(1);
    rank_main(*MakeStrategy({world, spread.hosts()}, spread.strategy));
  });
}

// A training with SGD: the losses of the global batches, and the weights, which all ranks share.
struct Training {
  std::vector<double> losses;
  Values before, after;
};

Training TrainWithSgd(const Spread& spread, int steps, double rate, DType dtype = DType::kF32) {
  Training training;
  CHECK(OnReplicas(spread, [&](Strategy& strategy) {
          StrategyRig rig(strategy, "sgd", rate, dtype);
          const Values before = rig.Weights();
          std::vector<double> losses;
          for (uint64_t epoch = 0; losses.size() < static_cast<size_t>(steps); ++epoch) {
            rig.train.StartEpoch(epoch);
            for (const ReplicaBatch& batch : RestOf(rig.train)) {
              if (losses.size() == static_cast<size_t>(steps)) break;
              const double mine =
                  strategy.Run([&] { return TrainStep(rig.replica, batch, rig.loss, {}); });
              losses.push_back(strategy.Reduce(ReduceOp::kSum, Value<double>(mine)).number());
            }
          }
          const Values after = rig.Weights();
          const Value<float> all = strategy.Gather(Value<float>(after), 0);
          for (int rank = 0; rank < strategy.num_replicas_in_sync(); ++rank)
            Expect(
                std::memcmp(
                    all.data.data() + static_cast<size_t>(rank) * after.size(), after.data(),
                    after.size() * sizeof(float)) == 0,
                "the same bits on all ranks");
          if (strategy.is_chief()) training = {losses, before, after};
        }) == Nothing(spread.ranks));
  return training;
}

// |one - other| / |other|
double RelativeDifference(const Values& one, const Values& other) {
  double difference = 0, size = 0;
  REQUIRE(one.size() == other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    difference += std::pow(double{one[i]} - double{other[i]}, 2);
    size += std::pow(double{other[i]}, 2);
  }
  return std::sqrt(difference / size);
}

// The gradient, computed from the weights before and after one step. The rate must be so large that
// the step outweighs the weights.
Values GradientOf(const Training& one_step, double rate) {
  Values gradient;
  for (size_t i = 0; i < one_step.after.size(); ++i)
    gradient.push_back(
        static_cast<float>((double{one_step.before[i]} - double{one_step.after[i]}) / rate));
  return gradient;
}

TEST_CASE("every strategy has the gradients of one device on the same global batch") {
  constexpr double kRate = 4096;
  const Training alone = TrainWithSgd(kOneDevice, 1, kRate);
  for (const Spread& spread : kSpreads) {
    CAPTURE(spread.strategy, spread.ranks, spread.backend == Backend::kHosts);
    const Training spread_out = TrainWithSgd(spread, 1, kRate);
    CHECK(RelativeDifference(GradientOf(spread_out, kRate), GradientOf(alone, kRate)) < 1e-6);
  }
}

TEST_CASE("every strategy has the losses of one device over 20 steps with dropout") {
  const Training alone = TrainWithSgd(kOneDevice, 20, 0.1);
  REQUIRE(alone.losses.size() == 20);
  CHECK(alone.losses.back() < 0.8 * alone.losses.front());
  for (const Spread& spread : kSpreads) {
    CAPTURE(spread.strategy, spread.ranks, spread.backend == Backend::kHosts);
    const Training training = TrainWithSgd(spread, 20, 0.1);
    REQUIRE(training.losses.size() == 20);
    for (size_t i = 0; i < 20; ++i) CHECK(std::abs(training.losses[i] - alone.losses[i]) < 1e-5);
  }
}

TEST_CASE("central storage has the bits of mirrored in f32 and bf16") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const Training mirrored = TrainWithSgd({"mirrored", 3}, 6, 0.1, dtype);
  const Training central = TrainWithSgd({"central_storage", 3}, 6, 0.1, dtype);
  CHECK(central.losses == mirrored.losses);
  CHECK(central.after == mirrored.after);
}

TEST_CASE("every strategy on one rank computes the weights of one device") {
  const Training one = TrainWithSgd(kOneDevice, 5, 0.1);
  for (const char* name : {"default", "mirrored", "multi_worker_mirrored", "central_storage"}) {
    CAPTURE(name);
    CHECK(TrainWithSgd({name}, 5, 0.1).after == one.after);
  }
}

TEST_CASE("an interrupted training resumes under the same or another strategy") {
  const Spread spread = GENERATE(
      Spread{"central_storage", 2}, Spread{"central_storage", 4, Backend::kHosts},
      Spread{"mirrored", 2});
  CAPTURE(spread.strategy, spread.ranks);
  const testing::TemporaryFolder folder;
  const auto fit = [&](const Spread& where, uint64_t epochs, const std::string& backup) {
    Values weights;
    CHECK(OnReplicas(where, [&](Strategy& strategy) {
            StrategyRig rig(strategy, "adam", 0.02);
            CallbackList callbacks;
            if (!backup.empty()) {
              callbacks = Callbacks(BackupAndRestore(
                  {.folder = folder.path() + backup, .max_to_keep = 0, .delete_at_end = false}));
            }
            rig.trainer.Fit(rig.train, {.epochs = epochs}, callbacks);
            Expect(rig.replica.step() == 5 * epochs, "all steps");
            if (strategy.is_chief()) weights = rig.Weights();
          }) == Nothing(where.ranks));
    return weights;
  };
  const Values whole = fit(spread, 4, "");
  fit(spread, 2, "/backup");
  CHECK(fit(spread, 4, "/backup") == whole);
  fit(spread, 2, "/other");
  CHECK(RelativeDifference(fit({"mirrored", 3}, 4, "/other"), whole) < 1e-4);
}

TEST_CASE("early stopping restores the best weights under central storage") {
  const auto stopped = [](const Spread& spread) {
    Values weights;
    CHECK(OnReplicas(spread, [&](Strategy& strategy) {
            StrategyRig rig(strategy, "sgd", 3);  // a rate that diverges slowly
            rig.trainer.Fit(
                rig.train, {.epochs = 8, .validation_data = &rig.test},
                Callbacks(EarlyStopping({.patience = 2, .restore_best_weights = true})));
            strategy.replicas().Barrier();
            if (strategy.is_chief()) weights = rig.Weights();
          }) == Nothing(spread.ranks));
    return weights;
  };
  CHECK(stopped({"central_storage", 2}) == stopped({"mirrored", 2}));
}

TEST_CASE("central storage refuses an optimizer that needs whole layers on all ranks") {
  const Texts refusals = OnReplicas(
      {"central_storage", 2}, [](Strategy& strategy) { StrategyRig rig(strategy, "lamb", 0.1); });
  CHECK(
      refusals ==
      Texts(
          2,
          "strategy central_storage: the ranks of a host share the update, but the "
          "update of this optimizer cannot be cut into slices; use multi_worker_mirrored"));
}

TEST_CASE("a data set function is called for each replica and makes the replica's batches") {
  CHECK(OnReplicas({"mirrored", 3}, [](Strategy& strategy) {
          const int rank = strategy.replicas().rank();
          StrategyBatches batches(strategy.DistributeDatasetFromFunction(
              [&](const dtrun::InputContext& input) -> std::unique_ptr<dtrun::Dataset> {
                Expect(input.input_pipeline_id == rank, "this replica's pipeline");
                Expect(input.num_input_pipelines == 3, "of three");
                Expect(input.PerReplicaBatchSize(12) == 4, "a third of the global batch");
                return std::make_unique<PipelineDataset>(
                    Pictures().Shard(3, static_cast<uint64_t>(rank)).Batch(4));
              }));
          Expect(batches.steps_per_epoch() == 5, "18 examples on rank 0, 17 elsewhere");
          batches.StartEpoch(0);
          uint64_t examples = 0, global = 0;
          for (const ReplicaBatch& batch : RestOf(batches))
            examples += batch.examples, global += batch.global_batch;
          Expect(examples == (rank == 0 ? 18 : 17), "its own");
          Expect(global == kExamples, "as many as there truly are");
        }) == Nothing(3));
}

TEST_CASE("an exception of a data set function on one replica is thrown on all replicas") {
  const Texts errors = OnReplicas({"mirrored", 2}, [](Strategy& strategy) {
    strategy.DistributeDatasetFromFunction(
        [&](const dtrun::InputContext& input) -> std::unique_ptr<dtrun::Dataset> {
          input.PerReplicaBatchSize(input.input_pipeline_id == 1 ? 7 : 8);
          return std::make_unique<PipelineDataset>(Pictures().Batch(4));
        });
  });
  CHECK(
      errors ==
      Texts(
          2,
          "replica 1: a global batch of 7 examples for 2 replicas; expected a multiple of the "
          "number of replicas, more than 0"));
}

}  // namespace
}  // namespace dtrun::models
