#ifndef DTRUN_TESTS_MODELS_TRAIN_TRAINING_RIG_H_
#define DTRUN_TESTS_MODELS_TRAIN_TRAINING_RIG_H_

// A small network and a small data set on threads as ranks.

#include <omp.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "models/data/distribute.h"
#include "models/layers/activations.h"
#include "models/layers/batch_norm.h"
#include "models/layers/dense.h"
#include "models/layers/sequential.h"
#include "models/losses/loss.h"
#include "models/metrics/metric.h"
#include "models/optim/adam.h"
#include "models/train/batch.h"
#include "models/train/trainer.h"
#include "tests/include/optimizer_rig.h"

namespace dtrun::models {

constexpr uint64_t kExamples = 42, kGlobalBatch = 8;  // the sixth batch of an epoch is ragged

/// Points of three classes. Each class is around its own corner.
inline Pipeline ToyPoints() {
  std::vector<float> values;
  std::vector<int32_t> labels;
  for (uint64_t i = 0; i < kExamples; ++i) {
    const auto label = static_cast<int32_t>(i % 3);
    labels.push_back(label);
    for (int32_t k = 0; k < 4; ++k) {
      const auto noise = static_cast<float>((i * 7919 + static_cast<uint64_t>(k) * 104729) % 97);
      values.push_back((k == label ? 1.0f : 0.0f) + noise / 194);
    }
  }
  return Pipeline::FromMemory({kExamples, 4}, std::move(values), std::move(labels));
}

inline LayerList PlainLayers() {
  return Layers(Dense(16, Activation::kRelu), Dropout(0.25), Dense(3));
}

/// A network with a regularizer and a normalization. A replica has at most 4 examples of a batch.
inline LayerList NormalizedLayers(bool synchronized) {
  return Layers(
      Dense(16, {.activation = Activation::kRelu, .kernel_l2 = 0.01}),
      BatchNorm({.synchronized = synchronized}), Dense(3));
}

/// One rank's part of a training.
struct TrainingRig {
  explicit TrainingRig(
      Communicator& world_in, LayerList layers = PlainLayers(), const ReplicaOptions& options = {})
      : world(world_in),
        model(
            {1, 1, 4}, std::move(layers),
            {.micro_batch = 4, .micro_batches = 1, .seed = 3, .communicator = &world_in}),
        optimizer(model.parameters(), {.learning_rate = 0.02}),
        replica(world, model, optimizer, options),
        train(DistributedPipeline(
            world, ToyPoints().Shuffle({.seed = 5}).Batch(kGlobalBatch),
            {.sharding = Sharding::kData})),
        test(DistributedPipeline(
            world, ToyPoints().Batch(kGlobalBatch), {.sharding = Sharding::kData})),
        trainer(replica, loss, MakeMetrics(SparseCategoricalAccuracy())) {}

  /// The values of all parameters, and of all buffers.
  std::vector<float> Weights() {
    std::vector<float> values;
    for (const Parameter& parameter : model.parameters()) {
      const auto* value = static_cast<const float*>(parameter.value.data);
      values.insert(values.end(), value, value + parameter.value.count);
    }
    for (const NamedBuffer& buffer : model.buffers()) {
      const auto* value = static_cast<const float*>(buffer.buffer.data);
      values.insert(values.end(), value, value + buffer.buffer.count);
    }
    return values;
  }

  Communicator& world;
  Sequential model;
  Adam optimizer;
  Replica replica;
  SparseCategoricalCrossentropy loss;
  PipelineBatches train, test;
  Trainer trainer;
};

/// Runs `rank_main` on each of `size` ranks. Returns the error of each rank, "" for none.
inline testing::Texts OnTrainingRanks(
    int size, const std::function<void(TrainingRig&)>& rank_main,
    const std::function<LayerList()>& layers = PlainLayers) {
  return testing::OnRanks(size, [&](Communicator& world) {
    omp_set_num_threads(1);
    TrainingRig rig(world, layers());
    rank_main(rig);
  });
}

/// The same text from every rank.
inline testing::Texts OnAll(int size, const std::string& text) {
  return testing::Texts(static_cast<size_t>(size), text);
}

}  // namespace dtrun::models

#endif
