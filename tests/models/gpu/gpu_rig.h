#ifndef DTRUN_TESTS_MODELS_GPU_GPU_RIG_H_
#define DTRUN_TESTS_MODELS_GPU_GPU_RIG_H_

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "models/data/dataset.h"
#include "models/gpu/gpu_replica.h"
#include "models/layers/activations.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/layers/sequential.h"
#include "models/networks/network.h"
#include "tests/models/image_step.h"
#include "tests/models/thread_world.h"

namespace dtrun::testing {

// Helpers to compare networks on a GPU with the same networks on the CPU.

inline models::Images MadeUpImages(uint64_t count, int height, int width, int classes = 10) {
  models::Images images;
  images.count = count;
  images.height = height;
  images.width = width;
  for (uint64_t i = 0; i < count * images.pixels_per_image(); ++i)
    images.pixels.push_back(uint8_t((i + 1) * 2654435761u >> 24));
  for (uint64_t i = 0; i < count; ++i)
    images.labels.push_back(uint8_t(i * 7 % static_cast<uint64_t>(classes)));
  return images;
}

inline models::ByteImages BytesOf(const models::Images& images) {
  return {images.count, images.pixels_per_image(), images.pixels.data(), images.labels.data()};
}

/// A network on the CPU with memory for its gradients.
class CpuNetwork {
 public:
  explicit CpuNetwork(const std::string& name, uint64_t seed = 5)
      : CpuNetwork(models::NetworkByName(name), seed) {}
  CpuNetwork(models::Network network, uint64_t seed)
      : CpuNetwork(network.input, std::move(network.layers), seed) {}
  CpuNetwork(const models::Shape& input, models::LayerList layers, uint64_t seed)
      : model(input, std::move(layers), {.micro_batch = 4, .micro_batches = 2, .seed = seed}) {
    for (Parameter& parameter : model.parameters()) {
      memory_.emplace_back(parameter.value.count);
      parameter.gradient.data = memory_.back().data();
    }
  }

  /// The gradients of one step, by parameter.
  std::vector<std::vector<float>> Gradients(
      const models::Images& images, const std::vector<uint32_t>& examples, uint64_t step) {
    model.PrepareWeights();
    tally = models::ComputeGradients(
        model, images, {examples, 0, examples.size(), step, 1}, [](size_t) {});
    return memory_;
  }

  models::Sequential model;
  models::Tally tally;

 private:
  std::vector<std::vector<float>> memory_;
};

/// ||a - b|| / ||b|| over all parameters together.
inline double RelativeDistance(
    const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double distance = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    for (size_t k = 0; k < b[i].size(); ++k) {
      distance += std::pow(double{a[i][k]} - double{b[i][k]}, 2);
      norm += std::pow(double{b[i][k]}, 2);
    }
  }
  return std::sqrt(distance / norm);
}

/// ||a - b|| / ||b||, or ||a|| if b is zero.
inline double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double distance = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    distance += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(norm == 0 ? distance : distance / norm);
}

inline std::vector<uint32_t> FirstExamples(uint64_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

inline models::LayerList SmallNetwork() {
  using models::Activation;
  return models::Layers(
      models::Conv2D(8, 3, Activation::kRelu), models::Conv2D(16, 3, Activation::kRelu),
      models::MaxPool2D(2), models::Dropout(0.25), models::Dense(16, Activation::kRelu),
      models::Dropout(0.5), models::Dense(4));
}

// Runs `main` on a single thread rank and checks that it throws no error.
inline void Alone(const std::function<void(Communicator&)>& main) {
  CHECK(OnRanks(1, main) == std::vector<std::string>{""});
}

inline models::GpuStep StepOf(uint64_t examples, uint64_t step = 0) {
  models::GpuStep of;
  of.step = step;
  of.examples = of.global_batch = examples;
  of.learning_rate = 1e-3;
  return of;
}

inline models::GpuOptions SmallGpuOptions(uint64_t rows, uint64_t seed = 5) {
  models::GpuOptions options;
  options.rows = rows;
  options.seed = seed;
  options.tf32 = false;
  options.steps_per_epoch = 64;
  options.workspace_bytes = 32 << 20;  // cuDNN needs it to move channels
  return options;
}

inline std::vector<std::vector<float>> ParametersOf(models::Sequential& model) {
  std::vector<std::vector<float>> values;
  for (const Parameter& parameter : model.parameters()) {
    const auto* value = static_cast<const float*>(parameter.value.data);
    values.emplace_back(value, value + parameter.value.count);
  }
  return values;
}

inline std::vector<std::vector<float>> ParametersOf(
    models::GpuReplica& replica, models::Sequential& model) {
  std::vector<std::vector<float>> values = ParametersOf(model);
  std::vector<NamedBuffer> views;
  for (std::vector<float>& each : values) views.push_back({"", Buffer(each.data(), each.size())});
  replica.GetParameters(views);
  return values;
}

}  // namespace dtrun::testing

#endif
