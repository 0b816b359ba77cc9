// Whole networks on a GPU, a real one or the simulated one, against the same networks on the CPU,
// which tests elsewhere hold against f64. Dropout masks are the same on both.

#include <catch2/catch.hpp>
#include <mutex>

#include "models/data/sampling.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/dropout.h"
#include "models/layers/max_pool2d.h"
#include "models/layers/reshape.h"
#include "models/optim/adam.h"
#include "models/optim/sgd.h"
#include "tests/models/gpu/gpu_rig.h"
#include "tests/models/thread_world.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

// On one rank that is a thread, with what it threw.
void Alone(const std::function<void(Communicator&)>& main) {
  CHECK(OnRanks(1, main) == std::vector<std::string>{""});
}

GpuStep StepOf(uint64_t examples, uint64_t step = 0) {
  GpuStep of;
  of.step = step;
  of.examples = of.global_batch = examples;
  of.learning_rate = 1e-3;
  return of;
}

struct OneStep {
  std::vector<std::vector<float>> gradients;
  GpuMetrics metrics;
};

OneStep StepOnGpu(
    Communicator& world, Sequential& model, const Images& images, const GpuOptions& options,
    const GpuStep& step) {
  const auto replica = GpuReplica::Make(model, world, options);
  replica->LoadTrainingData(BytesOf(images));
  replica->SetOrder(FirstExamples(images.count));
  replica->Step(step);
  return {replica->Gradients(), replica->TakeMetrics()};
}

TEST_CASE("a step's gradients are the CPU's, dropout included") {
  const std::string name = GENERATE("A", "B", "C", "D", "mlp");
  const uint64_t examples = 3;
  Alone([&](Communicator& world) {
    INFO(name);
    CpuNetwork cpu(name);
    const Images images = MadeUpImages(examples, 28, 28);
    const auto expected = cpu.Gradients(images, FirstExamples(examples), 7);
    const OneStep got =
        StepOnGpu(world, cpu.model, images, SmallGpuOptions(examples), StepOf(examples, 7));
    CHECK(RelativeDistance(got.gradients, expected) < 1e-5);
    CHECK(got.metrics.loss_sum == Approx(cpu.tally.loss).epsilon(1e-5));
    CHECK(got.metrics.correct == cpu.tally.correct);
    CHECK(got.metrics.examples == examples);
  });
}

TEST_CASE(
    "images of odd and unequal sides, fewer examples than rows, classes that fill no vector") {
  Alone([&](Communicator& world) {
    CpuNetwork cpu(
        {15, 12, 1},
        Layers(
            Conv2D(8, 3, Activation::kRelu), MaxPool2D(2), Conv2D(16, 3, Activation::kRelu),
            MaxPool2D(2), Dropout(0.4), Dense(8, Activation::kRelu), Dropout(0.1),
            Dense(16, Activation::kRelu), Dense(3)),
        99);
    const Images images = MadeUpImages(5, 15, 12, 3);
    const auto expected = cpu.Gradients(images, FirstExamples(5), 3);
    const OneStep got = StepOnGpu(world, cpu.model, images, SmallGpuOptions(7, 99), StepOf(5, 3));
    CHECK(RelativeDistance(got.gradients, expected) < 1e-5);
    CHECK(got.metrics.examples == 5);
  });
}

TEST_CASE("bf16 and f16 come as near to f32 as their digits let them") {
  const auto [dtype, tolerance] = GENERATE(
      std::pair<DType, double>{DType::kBF16, 0.05}, std::pair<DType, double>{DType::kF16, 0.01});
  const uint64_t examples = 3;
  Alone([&](Communicator& world) {
    INFO(NameOf(dtype));
    CpuNetwork cpu("C");
    const Images images = MadeUpImages(examples, 28, 28);
    const auto expected = cpu.Gradients(images, FirstExamples(examples), 7);
    GpuOptions options = SmallGpuOptions(examples);
    options.dtype = dtype;
    const OneStep got = StepOnGpu(world, cpu.model, images, options, StepOf(examples, 7));
    const double distance = RelativeDistance(got.gradients, expected);
    CHECK(distance < tolerance);
    CHECK(distance > 1e-5);  // it has computed in fewer digits
  });
}

}  // namespace
}  // namespace dtrun::testing
