// Training loops on a GPU, compared with the CPU: optimizers, replicas on one rank and on two.

#include <dtrun/checkpoint.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "models/callbacks/checkpoints.h"
#include "models/gpu/cuda_device.h"
#include "models/layers/activations.h"
#include "models/layers/batch_norm.h"
#include "models/layers/dense.h"
#include "models/layers/sequential.h"
#include "models/losses/loss.h"
#include "models/networks/network.h"
#include "models/optim/by_name.h"
#include "models/train/replica.h"
#include "models/train/steps.h"
#include "tests/conformance/suite.h"
#include "tests/models/gpu/gpu_rig.h"
#include "tests/models/thread_world.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

using namespace models;

using Values = std::vector<float>;

std::unique_ptr<ComputeDevice> Gpu() {
  return MakeCudaDevice({.tf32 = false, .workspace_bytes = 1 << 20});
}

Values Read(ComputeDevice& device, const Buffer& buffer) {
  Values values(buffer.count);
  device.Copy(buffer, Buffer(values.data(), values.size()));
  return values;
}

// The values of all parameters and f32 state after three steps with made-up gradients.
std::vector<Values> Optimized(
    ComputeDevice& device, const std::string& name, const OptimizerSettings& settings) {
  Sequential model(
      {1, 1, 13}, Layers(Dense(17), Dense(5)), {.micro_batches = 1, .seed = 4, .device = &device});
  std::vector<std::shared_ptr<void>> memory;
  for (Parameter& parameter : model.parameters())
    parameter.gradient = device.Allocate(parameter.value.count, DType::kF32, memory.emplace_back());
  const auto optimizer =
      MakeOptimizer(name, model.parameters(), model.parameter_shapes(), settings, device);
  for (int step = 0; step < 3; ++step) {
    for (const Parameter& parameter : model.parameters()) {
      Values gradient(parameter.value.count);
      for (size_t k = 0; k < gradient.size(); ++k)
        gradient[k] = static_cast<float>(std::cos(0.7 * static_cast<double>(k) + 3.1 * step));
      device.Copy(Buffer(gradient.data(), gradient.size()), parameter.gradient);
    }
    optimizer->Step();
  }
  std::vector<Values> all;
  for (const Parameter& parameter : model.parameters())
    all.push_back(Read(device, parameter.value));
  for (const NamedBuffer& state : optimizer->state())
    if (state.buffer.dtype == DType::kF32) all.push_back(Read(device, state.buffer));
  return all;
}

TEST_CASE("every optimizer updates parameters on a GPU as on the CPU", "[cuda_network]") {
  const std::string name = GENERATE(from_range(OptimizerNames()));
  std::vector<OptimizerSettings> all(1);
  if (name == "sgd" || name == "lars") {
    all.push_back({.momentum = 0.9, .weight_decay = 0.01});
    all.push_back({.momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  }
  for (const OptimizerSettings& settings : all) {
    INFO(name << " with momentum " << settings.momentum.value_or(-1));
    const auto device = Gpu();
    const std::vector<Values> cpu = Optimized(Cpu(), name, settings);
    const std::vector<Values> gpu = Optimized(*device, name, settings);
    REQUIRE(gpu.size() == cpu.size());
    for (size_t i = 0; i < cpu.size(); ++i) CHECK(Distance(gpu[i], cpu[i]) <= 1e-6);
  }
}

constexpr uint64_t kGlobalBatch = 4;

// Trains ResNet-18 on images of 8 x 8 pixels. Returns the loss of each step, over all ranks.
std::vector<double> TrainResNet(
    Communicator& world, ComputeDevice& device, int steps, bool synchronized) {
  NetworkOptions network_options;
  network_options.image = 8;
  network_options.classes = 5;
  network_options.synchronized = synchronized;
  Network network = NetworkByName("resnet18", network_options);
  Sequential model(
      network.input, std::move(network.layers),
      {.micro_batch = static_cast<int>(kGlobalBatch),
       .micro_batches = 1,
       .seed = 2,
       .communicator = &world,
       .device = &device});
  const auto optimizer = MakeOptimizer(
      "sgd", model.parameters(), model.parameter_shapes(), {.learning_rate = 0.01, .momentum = 0.9},
      device);
  Replica replica(world, model, *optimizer);
  const Range mine = PartOf({0, kGlobalBatch}, world.rank(), world.size());
  std::vector<int32_t> labels;
  ReplicaBatch batch;
  batch.examples = mine.size();
  batch.first_position = static_cast<uint32_t>(mine.begin);
  batch.global_batch = kGlobalBatch;
  for (uint64_t i = mine.begin; i < mine.end; ++i) labels.push_back(static_cast<int32_t>(i % 5));
  batch.targets.labels = labels;
  const size_t width = model.inputs();
  batch.write_inputs = [&](size_t first, size_t count, float* inputs) {
    for (size_t i = 0; i < count * width; ++i)
      inputs[i] = static_cast<float>(std::sin(0.37 * double((mine.begin + first) * width + i)));
  };
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(TrainStep(replica, batch, SparseCategoricalCrossentropy(), {}));
    replica.set_step(static_cast<uint64_t>(step) + 1);
  }
  world.AllReduce(Buffer(losses.data(), losses.size()));
  return losses;
}

void CheckClose(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    INFO("step " << i << ": " << got[i] << ", on the CPU " << expected[i]);
    CHECK(std::abs(got[i] - expected[i]) <= 1e-4);
  }
}

TEST_CASE("ResNet-18 trains on a GPU with the losses of the CPU", "[cuda_network]") {
  const int steps = RunsInFull() ? 20 : 8;
  std::vector<double> cpu, gpu;
  CHECK(OnRanks(1, [&](Communicator& world) {
          cpu = TrainResNet(world, Cpu(), steps, false);
          const auto device = Gpu();
          gpu = TrainResNet(world, *device, steps, false);
        }) == std::vector<std::string>{""});
  CheckClose(gpu, cpu);
  CHECK(cpu.back() < cpu.front() / 2);
}

TEST_CASE("two ranks on a GPU train as one rank on the CPU", "[cuda_network]") {
  std::vector<double> cpu, gpus[2];
  CHECK(OnRanks(1, [&](Communicator& world) {
          cpu = TrainResNet(world, Cpu(), 4, true);
        }) == std::vector<std::string>{""});
  CHECK(OnRanks(2, [&](Communicator& world) {
          const auto device = Gpu();
          gpus[world.rank()] = TrainResNet(world, *device, 4, true);
        }) == std::vector<std::string>{"", ""});
  CheckClose(gpus[0], cpu);
  CHECK(gpus[0] == gpus[1]);
}

// What two f16 replicas end with after 12 steps with a loss scale that overflows at first. From
// step 9 on, the loss of one rank is infinite.
struct ScaledRun {
  LossScale scale;
  std::vector<double> losses;
  Values values;
};

ScaledRun TrainScaled(Communicator& world, ComputeDevice& device) {
  Sequential model(
      {1, 1, 3}, Layers(Dense(16, Activation::kRelu), Dense(4)),
      {.micro_batch = 4, .micro_batches = 1, .dtype = DType::kF16, .device = &device});
  const auto optimizer = MakeOptimizer(
      "adam", model.parameters(), model.parameter_shapes(), {.learning_rate = 0.01}, device);
  LossScaleOptions options;
  options.initial_scale = 0x1p24;
  options.growth_interval = 4;
  Replica replica(world, model, *optimizer, {.loss_scale = options});
  const std::vector<int32_t> labels = {0, 1, 2, 3};
  ScaledRun run;
  for (uint64_t step = 0; step < 12; ++step) {
    ReplicaBatch batch;
    batch.examples = 4;
    batch.first_position = static_cast<uint32_t>(4 * world.rank());
    batch.global_batch = 8;
    batch.targets.labels = labels;
    const bool is_broken = step >= 9 && world.rank() == 1;
    batch.write_inputs = [&](size_t, size_t count, float* inputs) {
      for (size_t i = 0; i < 3 * count; ++i)
        inputs[i] = is_broken ? std::numeric_limits<float>::infinity()
                              : static_cast<float>(std::sin(1.7 * double(i)));
    };
    run.losses.push_back(TrainStep(replica, batch, SparseCategoricalCrossentropy(), {}));
    replica.set_step(step + 1);
    if (step == 8) run.values = Read(device, model.parameters()[0].value);
  }
  if (Read(device, model.parameters()[0].value) != run.values)
    throw Error(ErrorCode::kSystem, "a step with an overflow has changed parameters");
  run.scale = replica.loss_scale();
  return run;
}

TEST_CASE(
    "replicas on a GPU train in f16 with a loss scale and skip the overflow of one rank together",
    "[cuda_network]") {
  ScaledRun runs[2];
  CHECK(OnRanks(2, [&](Communicator& world) {
          const auto device = Gpu();
          runs[world.rank()] = TrainScaled(world, *device);
        }) == std::vector<std::string>{"", ""});
  CHECK(runs[0].scale == runs[1].scale);
  CHECK(runs[0].values == runs[1].values);
  CHECK(runs[0].scale.skipped_in_a_row == 3);
  CHECK(runs[0].scale.skipped_steps > 3);
  CHECK(runs[0].scale.skipped_steps < 9);
  CHECK(runs[0].losses[8] < runs[0].losses[0]);
}

// Trains a network with an unsynchronised normalisation for one step, and saves it without an
// evaluation before. Returns the moving averages of the file, and their mean over the ranks.
std::pair<Values, Values> SavedAverages(Communicator& world, const std::string& folder) {
  const auto device = Gpu();
  Sequential model(
      {1, 1, 3}, Layers(BatchNorm(), Dense(2)),
      {.micro_batch = 4, .micro_batches = 1, .device = device.get()});
  const auto optimizer =
      MakeOptimizer("sgd", model.parameters(), model.parameter_shapes(), {}, *device);
  Replica replica(world, model, *optimizer);
  std::vector<int32_t> labels(4);
  ReplicaBatch batch;
  batch.examples = 4;
  batch.first_position = static_cast<uint32_t>(4 * world.rank());
  batch.global_batch = 8;
  batch.targets.labels = labels;
  batch.write_inputs = [&](size_t, size_t count, float* inputs) {
    for (size_t i = 0; i < 3 * count; ++i)
      inputs[i] = static_cast<float>(i % 5) + static_cast<float>(10 * world.rank());
  };
  TrainStep(replica, batch, SparseCategoricalCrossentropy(), {});
  Values mean = Read(*device, model.buffers()[0].buffer);
  world.AllReduce(Buffer(mean.data(), mean.size()), ReduceOp::kAverage);
  Metric* none[1] = {};
  models::Run run(replica, std::span<Metric* const>(none, 0));
  run.epochs = 1;
  ModelCheckpoint checkpoint({.path = folder + "/saved"});
  checkpoint.OnTrainBegin(run);
  Logs logs;
  run.position.epoch = 1;
  checkpoint.OnEpochEnd(run, logs);
  checkpoint.OnTrainEnd(run, logs);
  Values saved(mean.size());
  CheckpointManager manager(world, folder);
  manager.Load(
      {NamedTensor("layer0.batch_norm.moving_mean", Buffer(saved.data(), saved.size()))},
      {.allow_unexpected = true});
  return {saved, mean};
}

TEST_CASE("a checkpoint of GPUs holds the averaged statistics of all ranks", "[cuda_network]") {
  const TemporaryFolder folder;
  CHECK(OnRanks(2, [&](Communicator& world) {
          const auto [saved, mean] = SavedAverages(world, folder.path());
          if (saved != mean) throw Error(ErrorCode::kSystem, "the file has other averages");
        }) == std::vector<std::string>{"", ""});
}

}  // namespace
}  // namespace dtrun::testing
