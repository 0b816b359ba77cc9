// Whole networks on a GPU, real or simulated, against the same networks on the CPU. Other tests
// compare the CPU's networks with f64. Dropout masks are the same on both.

#include <dtrun/device_memory.h>

#include <catch2/catch.hpp>

#include "models/data/sampling.h"
#include "models/layers/activations.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/optim/adam.h"
#include "models/optim/sgd.h"
#include "tests/models/gpu/gpu_rig.h"
#include "tests/models/thread_world.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

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

TEST_CASE("the gradients of a step match the CPU with the same dropout") {
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
    "gradients match the CPU for odd image sides and a partial batch and an unaligned class "
    "count") {
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

TEST_CASE("bf16 and f16 gradients match f32 within the precision of their type") {
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
    CHECK(distance > 1e-5);  // the replica did compute in the narrow type
  });
}

TEST_CASE("a batch of several blocks with fewer examples than rows matches the CPU") {
  Alone([&](Communicator& world) {
    CpuNetwork cpu("mlp");
    const Images images = MadeUpImages(300, 28, 28);
    const auto expected = cpu.Gradients(images, FirstExamples(300), 1);
    const OneStep got = StepOnGpu(world, cpu.model, images, SmallGpuOptions(320), StepOf(300, 1));
    CHECK(RelativeDistance(got.gradients, expected) < 1e-5);
    CHECK(got.metrics.correct == cpu.tally.correct);
    CHECK(got.metrics.loss_sum == Approx(cpu.tally.loss).epsilon(1e-5));
  });
}

// Batches of 4 out of 12 images, in a shuffled order.
struct Training {
  Images images = MadeUpImages(12, 10, 10, 4);
  std::vector<uint32_t> order = EpochOrder(3, 0, 12);

  std::vector<uint32_t> Batch(uint64_t step) const {
    const auto first = order.begin() + static_cast<ptrdiff_t>(step % 3 * 4);
    return {first, first + 4};
  }

  void StepOn(GpuReplica& replica, uint64_t step) const {
    GpuStep of = StepOf(4, step);
    of.first_example = step % 3 * 4;
    of.loss_slot = step;
    of.learning_rate = 1e-2 / static_cast<double>(step + 1);
    replica.Step(of);
  }

  std::unique_ptr<GpuReplica> On(
      Communicator& world, Sequential& model, const GpuOptions& options) const {
    auto replica = GpuReplica::Make(model, world, options);
    replica->LoadTrainingData(BytesOf(images));
    replica->SetOrder(order);
    return replica;
  }
};

TEST_CASE("several optimizer steps give the CPU's parameters and optimizer state") {
  const bool adam = GENERATE(true, false);
  Alone([&](Communicator& world) {
    const Training training;
    CpuNetwork cpu({10, 10, 1}, SmallNetwork(), 5), host({10, 10, 1}, SmallNetwork(), 5);
    std::unique_ptr<RateOptimizer> optimizer, of_host;
    GpuOptions options = SmallGpuOptions(4);
    if (adam) {
      optimizer = std::make_unique<Adam>(cpu.model.parameters(), AdamOptions());
      of_host = std::make_unique<Adam>(host.model.parameters(), AdamOptions());
    } else {
      const SgdOptions sgd{.momentum = 0.9, .nesterov = true, .weight_decay = 1e-3};
      optimizer = std::make_unique<Sgd>(cpu.model.parameters(), sgd);
      of_host = std::make_unique<Sgd>(host.model.parameters(), sgd);
      options.optimizer = {
          .kind = GpuOptimizer::Kind::kSgd,
          .momentum = 0.9,
          .weight_decay = 1e-3,
          .nesterov = true};
    }
    const auto replica = training.On(world, host.model, options);
    for (uint64_t step = 0; step < 5; ++step) {
      training.StepOn(*replica, step);
      cpu.Gradients(training.images, training.Batch(step), step);
      optimizer->set_learning_rate(1e-2 / static_cast<double>(step + 1));
      optimizer->Step();
      CHECK(replica->Losses(step + 1)[step] == Approx(cpu.tally.mean_loss()).epsilon(1e-4));
    }
    CHECK(RelativeDistance(ParametersOf(*replica, host.model), ParametersOf(cpu.model)) < 1e-4);
    replica->GetState(of_host->state());
    const auto got = of_host->state(), expected = optimizer->state();
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      INFO(got[i].name);
      if (got[i].buffer.dtype == DType::kU64) {
        CHECK(*static_cast<uint64_t*>(got[i].buffer.data) == 5);
        continue;
      }
      const auto values = [](const Buffer& buffer) {
        const auto* first = static_cast<const float*>(buffer.data);
        return std::vector<std::vector<float>>{{first, first + buffer.count}};
      };
      CHECK(RelativeDistance(values(got[i].buffer), values(expected[i].buffer)) < 1e-3);
    }
  });
}

TEST_CASE("steps in a graph have the bits of single launches and continue from a saved state") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  Alone([&](Communicator& world) {
    const Training training;
    CpuNetwork cpu({10, 10, 1}, SmallNetwork(), 5);
    GpuOptions options = SmallGpuOptions(4);
    options.dtype = dtype;
    std::vector<std::vector<float>> results[2];
    for (const bool graph : {false, true}) {
      options.graph = graph;
      const auto replica = training.On(world, cpu.model, options);
      for (uint64_t step = 0; step < 6; ++step) training.StepOn(*replica, step);
      results[graph] = ParametersOf(*replica, cpu.model);
    }
    CHECK(results[0] == results[1]);

    Adam state(cpu.model.parameters(), {});
    const auto first = training.On(world, cpu.model, options);
    for (uint64_t step = 0; step < 3; ++step) training.StepOn(*first, step);
    std::vector<NamedBuffer> values;
    for (const Parameter& parameter : cpu.model.parameters())
      values.push_back({parameter.name, parameter.value});
    first->GetParameters(values);
    first->GetState(state.state());
    const auto second = training.On(world, cpu.model, options);
    second->SetState(state.state());
    for (uint64_t step = 3; step < 6; ++step) training.StepOn(*second, step);
    CHECK(ParametersOf(*second, cpu.model) == results[0]);
  });
}

TEST_CASE("an f16 loss scale shrinks with skipped steps and grows after good steps") {
  Alone([&](Communicator& world) {
    const Training training;
    CpuNetwork cpu({10, 10, 1}, SmallNetwork(), 5);
    GpuOptions options = SmallGpuOptions(4);
    options.dtype = DType::kF16;
    options.initial_loss_scale = 0x1p24;  // gradients exceed 65504
    options.loss_scale_growth = 2;
    const auto replica = training.On(world, cpu.model, options);
    const auto before = ParametersOf(*replica, cpu.model);
    training.StepOn(*replica, 0);
    CHECK(ParametersOf(*replica, cpu.model) == before);
    CHECK(replica->loss_scale().skipped_steps == 1);
    CHECK(replica->loss_scale().scale == 0x1p23);
    uint64_t step = 1;
    while (replica->loss_scale().skipped_steps == step && step < 24)
      training.StepOn(*replica, step++);
    const double found = replica->loss_scale().scale;
    REQUIRE(step < 24);
    CHECK(ParametersOf(*replica, cpu.model) != before);
    training.StepOn(*replica, step);
    CHECK(replica->loss_scale().scale == 2 * found);
    Adam state(cpu.model.parameters(), {});
    replica->GetState(state.state());
    // The optimizer does not count skipped steps.
    CHECK(*static_cast<uint64_t*>(state.state().back().buffer.data) == 2);
  });
}

TEST_CASE("two ranks with half a batch each compute the gradients of one rank with all of it") {
  const Training training;
  std::vector<std::vector<float>> gradients[3], parameters[3];  // [2]: of the single rank
  const auto train = [&](Communicator& world) {
    CpuNetwork cpu({10, 10, 1}, SmallNetwork(), 5);
    const auto replica = training.On(world, cpu.model, SmallGpuOptions(4));
    for (uint64_t step = 0; step < 3; ++step) {
      const Range mine = PartOf({0, 4}, world.rank(), world.size());
      GpuStep of = StepOf(4, step);
      of.first_example = step * 4 + mine.begin;
      of.first_position = mine.begin;
      of.examples = mine.size();
      replica->Step(of);
      if (step == 0) gradients[world.size() == 1 ? 2 : world.rank()] = replica->Gradients();
    }
    parameters[world.size() == 1 ? 2 : world.rank()] = ParametersOf(*replica, cpu.model);
  };
  CHECK(OnRanks(1, train) == std::vector<std::string>{""});
  CHECK(OnRanks(2, train) == std::vector<std::string>{"", ""});
  CHECK(gradients[0] == gradients[1]);
  CHECK(parameters[0] == parameters[1]);
  CHECK(RelativeDistance(gradients[0], gradients[2]) < 1e-5);
}

TEST_CASE("after a failed all-reduce every read of the replica's results is an error") {
  const Training training;
  int refused = 0;
  const auto train = [&](Communicator& world) {
    CpuNetwork cpu({10, 10, 1}, SmallNetwork(), 5);
    const auto replica = training.On(world, cpu.model, SmallGpuOptions(4));
    Adam state(cpu.model.parameters(), {});
    Memory other = AllocateOnDevice(world, 0, 64);
    training.StepOn(*replica, 0);
    world.Barrier();
    if (world.rank() == 1) {
      Buffer buffer(static_cast<float*>(other.data()), 16);
      buffer.device = 0;
      world.AllReduce(buffer);
      return;
    }
    training.StepOn(*replica, 1);
    const auto refuses = [&](const auto& read) {
      try {
        read();
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kMismatch) ++refused;
      }
    };
    refuses([&] { ParametersOf(*replica, cpu.model); });
    refuses([&] { replica->GetState(state.state()); });
    refuses([&] { replica->Gradients(); });
    refuses([&] { replica->Losses(1); });
    refuses([&] { replica->loss_scale(); });
    refuses([&] { replica->TakeMetrics(); });
  };
  CHECK(OnRanks(2, train) == std::vector<std::string>{"", ""});
  CHECK(refused == 6);
}

TEST_CASE("evaluation runs without dropout on a range that is no multiple of the rows") {
  Alone([&](Communicator& world) {
    CpuNetwork cpu({10, 10, 1}, SmallNetwork(), 5);
    const Images images = MadeUpImages(11, 10, 10, 4);
    const auto replica = GpuReplica::Make(cpu.model, world, SmallGpuOptions(4));
    replica->LoadTestData(BytesOf(images));
    cpu.model.PrepareWeights();
    const Tally expected = models::Evaluate(cpu.model, images, {2, 11});
    const GpuMetrics got = replica->Evaluate(2, 9);
    CHECK(got.loss_sum == Approx(expected.loss).epsilon(1e-5));
    CHECK(got.correct == expected.correct);
    CHECK(got.examples == 9);
  });
}

TEST_CASE("invalid replicas and steps are refused with the found and the expected value") {
  const auto refusal = [](const std::function<void(Communicator&)>& make) {
    return OnRanks(1, make)[0];
  };
  CpuNetwork cpu({10, 10, 1}, SmallNetwork(), 5);
  GpuOptions options = SmallGpuOptions(uint64_t{1} << 20);
  CHECK_THAT(
      refusal([&](Communicator& world) { GpuReplica::Make(cpu.model, world, options); }),
      Catch::Contains("a batch of 1048576 examples on GPU 0") && Catch::Contains(" needs ") &&
          Catch::Contains(" are free"));
  options = SmallGpuOptions(4);
  options.dtype = DType::kF64;
  CHECK_THAT(
      refusal([&](Communicator& world) { GpuReplica::Make(cpu.model, world, options); }),
      Catch::Contains("computes in f32, bf16 or f16, got f64"));
  options = SmallGpuOptions(4);
  CHECK_THAT(
      refusal([&](Communicator& world) {
        const auto replica = GpuReplica::Make(cpu.model, world, options);
        const Training training;
        replica->LoadTrainingData(BytesOf(training.images));
        replica->Step(StepOf(5));
      }),
      Catch::Contains("expected at most 4 examples"));
}

TEST_CASE("the largest batch is a power of two that fits") {
  CpuNetwork cpu({10, 10, 1}, SmallNetwork(), 5);
  GpuOptions options = SmallGpuOptions(0);
  const uint64_t all = uint64_t{1} << 40;
  CHECK(LargestGpuBatch(cpu.model, options, {}, 1000) == 512);
  const uint64_t most = LargestGpuBatch(cpu.model, options, {}, all);
  CHECK(most > 512);
  options.sharers = 4;
  CHECK(LargestGpuBatch(cpu.model, options, {}, all) < most);
  options.sharers = 1;
  // A data set larger than the GPU's memory is streamed and needs little memory.
  const uint64_t too_large[] = {all};
  const uint64_t beside_it = LargestGpuBatch(cpu.model, options, too_large, all);
  CHECK(beside_it >= most / 2);
  CHECK(beside_it <= most);
  options.data = GpuData::kResident;
  CHECK_THROWS_WITH(
      LargestGpuBatch(cpu.model, options, too_large, 8),
      Catch::Contains("a batch of one example on GPU 0"));
}

}  // namespace
}  // namespace dtrun::testing
