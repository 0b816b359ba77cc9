// Training data outside the GPU's memory, on a real or simulated GPU.

#include <catch2/catch.hpp>

#include "models/data/sampling.h"
#include "tests/models/gpu/gpu_rig.h"
#include "tests/models/thread_world.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

// Epochs of 11 images in batches of 4. The last batch has 3 images.
struct RaggedTraining {
  Images images = MadeUpImages(11, 10, 10, 4), test = MadeUpImages(9, 10, 10, 4);

  struct Result {
    std::vector<std::vector<float>> parameters;
    std::vector<double> losses;
    double test_loss = 0;
    uint64_t test_correct = 0;
    bool operator==(const Result&) const = default;
  };

  enum class Ahead { kNothing, kNext, kWrong };

  Result On(Communicator& world, const GpuOptions& options, Ahead ahead) const {
    CpuNetwork cpu({10, 10, 1}, SmallNetwork(), 5);
    const auto replica = GpuReplica::Make(cpu.model, world, options);
    const bool resident = options.data == GpuData::kResident;
    CHECK(replica->LoadTrainingData(BytesOf(images)) == resident);
    CHECK(replica->LoadTestData(BytesOf(test)) == resident);
    Result result;
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      replica->SetOrder(EpochOrder(3, epoch, images.count));
      for (uint64_t batch = 0; batch < 3; ++batch) {
        const Range global = GlobalBatch(batch, images.count, 4);
        const Range mine = PartOf(global, world.rank(), world.size());
        const Range next =
            PartOf(GlobalBatch((batch + 1) % 3, images.count, 4), world.rank(), world.size());
        GpuStep of;
        of.step = epoch * 3 + batch;
        of.first_example = mine.begin;
        of.first_position = mine.begin - global.begin;
        of.examples = mine.size();
        of.global_batch = global.size();
        of.loss_slot = batch;
        of.learning_rate = 1e-2;
        if (ahead == Ahead::kNext) of.next_example = next.begin;
        if (ahead != Ahead::kNothing) of.next_examples = next.size();
        replica->Step(of);
      }
      // The tested parts are no multiple of a batch.
      const Range tested = PartOf({0, test.count}, world.rank(), world.size());
      const GpuMetrics sums = replica->Evaluate(tested.begin, tested.size());
      result.test_loss += sums.loss_sum;
      result.test_correct += sums.correct;
      for (const double loss : replica->Losses(3)) result.losses.push_back(loss);
    }
    result.parameters = ParametersOf(*replica, cpu.model);
    return result;
  }
};

TEST_CASE("streamed data gives the same bits as data in GPU memory") {
  using Ahead = RaggedTraining::Ahead;
  const RaggedTraining training;
  const auto [ranks, ahead] = GENERATE(table<int, Ahead>(
      {{1, Ahead::kNext}, {1, Ahead::kWrong}, {1, Ahead::kNothing}, {2, Ahead::kNext}}));
  std::vector<RaggedTraining::Result> resident(2), streamed(2);
  const auto train = [&, ahead = ahead, ranks = ranks](Communicator& world) {
    GpuOptions options = SmallGpuOptions(4 / static_cast<uint64_t>(ranks));
    const auto rank = static_cast<size_t>(world.rank());
    options.data = GpuData::kResident;
    resident[rank] = training.On(world, options, ahead);
    options.data = GpuData::kStreamed;
    streamed[rank] = training.On(world, options, ahead);
  };
  CHECK(OnRanks(ranks, train) == std::vector<std::string>(static_cast<size_t>(ranks)));
  CHECK(streamed == resident);
  CHECK(resident[0].losses.size() == 6);
}

TEST_CASE("a data set that does not fit into the memory limit is streamed automatically") {
  Alone([&](Communicator& world) {
    CpuNetwork cpu({10, 10, 1}, SmallNetwork(), 5);
    const uint64_t count = 500000;
    const std::vector<uint8_t> pixels(count * 100, 7), labels(count, 1);
    const ByteImages large{count, 100, pixels.data(), labels.data()};
    GpuOptions options = SmallGpuOptions(4);
    options.memory_bytes = 48 << 20;
    const Images small = MadeUpImages(5, 10, 10, 4);
    auto replica = GpuReplica::Make(cpu.model, world, options);
    CHECK_FALSE(replica->LoadTrainingData(large));
    CHECK(replica->LoadTestData(BytesOf(small)));
    replica->Step(StepOf(4));
    CHECK(replica->TakeMetrics().examples == 4);
    // The last examples of the data set.
    GpuStep last = StepOf(4, 1);
    last.first_example = count - 4;
    replica->Step(last);
    CHECK(replica->TakeMetrics().examples == 4);
    replica.reset();
    options.memory_bytes = 0;
    replica = GpuReplica::Make(cpu.model, world, options);
    CHECK(replica->LoadTrainingData(large));
  });
}

TEST_CASE("a replica can be destroyed while a batch is being copied") {
  const Images images = MadeUpImages(12, 10, 10, 4);
  Alone([&](Communicator& world) {
    CpuNetwork cpu({10, 10, 1}, SmallNetwork(), 5);
    GpuOptions options = SmallGpuOptions(4);
    options.data = GpuData::kStreamed;
    const auto replica = GpuReplica::Make(cpu.model, world, options);
    CHECK_FALSE(replica->LoadTrainingData(BytesOf(images)));
    GpuStep step = StepOf(4);
    step.next_example = 4;
    step.next_examples = 4;
    replica->Step(step);
    step.next_example = 9;
    CHECK_THROWS_WITH(
        replica->Step(step), Catch::Contains("examples 9 to 13; expected at most 4 examples"));
  });
}

}  // namespace
}  // namespace dtrun::testing
