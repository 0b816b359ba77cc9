// Distributed pipelines on threads as ranks.

#include "models/data/distribute.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <stdexcept>

#include "models/data/pipeline.h"
#include "tests/models/data/pipeline_rig.h"
#include "tests/models/idx_files.h"
#include "tests/models/thread_world.h"

namespace dtrun::models {
namespace {

using dtrun::testing::Gzipped;
using dtrun::testing::Idx;
using dtrun::testing::OnRanks;
using dtrun::testing::TemporaryFolder;
using dtrun::testing::WriteFile;
using dtrun::testing::operator/;
using Texts = std::vector<std::string>;

Texts Nothing(int ranks) { return Texts(static_cast<size_t>(ranks)); }

// CHECK for the thread of a rank: throws on failure.
void Expect(bool holds) {
  if (!holds) throw std::runtime_error("not as expected");
}

// A copy of one batch of a rank.
struct Seen {
  Ids labels;
  std::vector<float> inputs;
  uint64_t global_size, first_position;
};
using Epoch = std::vector<Seen>;

Epoch ReadEpoch(Iterator& iterator) {
  Epoch epoch;
  while (const Batch* batch = iterator.Next()) {
    std::vector<float> inputs(batch->size() * batch->shape().count());
    batch->CopyInputs(0, batch->size(), inputs.data());
    epoch.push_back({LabelsOf(*batch), inputs, batch->global_size(), batch->first_position()});
  }
  return epoch;
}

// The batches of an epoch on each rank.
std::vector<Epoch> EpochOnRanks(
    int ranks, const Pipeline& pipeline, uint64_t epoch, const DistributeOptions& options = {}) {
  std::vector<Epoch> of_ranks(static_cast<size_t>(ranks));
  CHECK(OnRanks(ranks, [&](Communicator& world) {
          const DistributedPipeline distributed(world, pipeline, options);
          Iterator iterator = distributed.Begin({epoch, 0});
          of_ranks[static_cast<size_t>(world.rank())] = ReadEpoch(iterator);
        }) == Nothing(ranks));
  return of_ranks;
}

// The parts of all ranks of step `step`, joined in rank order. Checks positions and counts.
Seen Together(const std::vector<Epoch>& of_ranks, size_t step) {
  Seen all{{}, {}, of_ranks[0][step].global_size, 0};
  for (const Epoch& epoch : of_ranks) {
    const Seen& seen = epoch.at(step);
    CHECK(seen.first_position == all.labels.size());
    CHECK(seen.global_size == all.global_size);
    all.labels.insert(all.labels.end(), seen.labels.begin(), seen.labels.end());
    all.inputs.insert(all.inputs.end(), seen.inputs.begin(), seen.inputs.end());
  }
  CHECK(all.global_size == all.labels.size());
  return all;
}

TEST_CASE("the parts of all ranks together are the same batches as on a single rank") {
  const Pipeline pipelines[] = {
      Numbers(103).Shuffle({}).Batch(16),
      Numbers(103).Shuffle({.buffer = 11}).Map(RandomCrop(1, 5)).Batch(16, Remainder::kDrop),
      Numbers(103).Map(RandomCrop(1, 5)).Cache().Shuffle({}).Repeat(2).Batch(7).Prefetch(2),
      Numbers(41).Repeat(3).Shuffle({.buffer = 50}).Batch(20).Skip(1).Take(4)};
  for (const Pipeline& pipeline : pipelines) {
    for (uint64_t epoch : {0, 2}) {
      Iterator alone(pipeline, {epoch, 0});
      const Epoch expected = ReadEpoch(alone);
      for (int ranks : {1, 2, 3, 4, 5}) {
        INFO(pipeline.description() << " on " << ranks << " ranks");
        const std::vector<Epoch> of_ranks = EpochOnRanks(ranks, pipeline, epoch);
        for (const Epoch& one : of_ranks) REQUIRE(one.size() == expected.size());
        for (size_t step = 0; step < expected.size(); ++step) {
          const Seen together = Together(of_ranks, step);
          CHECK(together.labels == expected[step].labels);
          CHECK(together.inputs == expected[step].inputs);
        }
      }
    }
  }
}

TEST_CASE("some ranks get no examples if the last batch has fewer examples than ranks") {
  const std::vector<Epoch> of_ranks = EpochOnRanks(5, Numbers(13).Batch(10), 0);
  const Seen last = Together(of_ranks, 1);
  CHECK(last.labels == Ids{10, 11, 12});
  CHECK(last.global_size == 3);
  const auto empty = [](const Epoch& epoch) { return epoch[1].labels.empty(); };
  CHECK(std::count_if(of_ranks.begin(), of_ranks.end(), empty) == 2);
}

TEST_CASE("a data set smaller than the batch and the number of ranks makes one smaller batch") {
  const std::vector<Epoch> of_ranks = EpochOnRanks(5, Numbers(2).Batch(8), 0);
  for (const Epoch& epoch : of_ranks) CHECK(epoch.size() == 1);
  CHECK(Together(of_ranks, 0).labels == Ids{0, 1});
  CHECK(Together(of_ranks, 0).global_size == 2);
}

TEST_CASE("a distributed pipeline resumes inside an epoch on any number of ranks") {
  const Pipeline pipeline = Numbers(50).Shuffle({}).Batch(8).Prefetch(2);
  const Pipeline whole = Numbers(50).Shuffle({}).Batch(8);
  for (int ranks : {2, 3}) {
    std::vector<Epoch> of_ranks(static_cast<size_t>(ranks));
    CHECK(OnRanks(ranks, [&](Communicator& world) {
            Iterator resumed = DistributedPipeline(world, pipeline).Begin({1, 4});
            of_ranks[static_cast<size_t>(world.rank())] = ReadEpoch(resumed);
          }) == Nothing(ranks));
    Iterator alone(whole, {1, 4});
    for (size_t step = 0; const Batch* batch = alone.Next(); ++step)
      CHECK(Together(of_ranks, step).labels == LabelsOf(*batch));
  }
}

// Files of 1x1 images. Example i over all files has the byte i as its image and its label.
std::vector<IdxFiles> WriteFiles(
    const TemporaryFolder& folder, const std::vector<uint32_t>& sizes) {
  std::vector<IdxFiles> files;
  uint8_t next = 0;
  for (const uint32_t size : sizes) {
    dtrun::testing::Bytes bytes(size);
    std::iota(bytes.begin(), bytes.end(), next);
    next = static_cast<uint8_t>(next + size);
    const std::string name = folder / std::to_string(files.size());
    WriteFile(name + ".images", Idx({size, 1, 1}, bytes));
    WriteFile(name + ".labels", Gzipped(Idx({size}, bytes)));
    files.push_back({name + ".images", name + ".labels"});
  }
  return files;
}

TEST_CASE("files are dealt to the ranks and an epoch has the same number of steps on every rank") {
  TemporaryFolder folder;
  const Pipeline pipeline = Pipeline::FromFiles(WriteFiles(folder, {5, 7, 2})).Batch(4);
  CHECK(OrderOf(Pipeline::FromFiles(WriteFiles(folder, {5, 7, 2}))).size() == 14);
  const std::vector<Epoch> of_ranks = EpochOnRanks(2, pipeline, 0);
  // Rank 0 has files 0 and 2, rank 1 has file 1. Each rank reads two examples per step.
  using Labels = std::vector<Ids>;
  const auto labels = [](const Epoch& epoch) {
    Labels all;
    for (const Seen& seen : epoch) all.push_back(seen.labels);
    return all;
  };
  CHECK(labels(of_ranks[0]) == Labels{{0, 1}, {2, 3}, {4, 12}, {13}});
  CHECK(labels(of_ranks[1]) == Labels{{5, 6}, {7, 8}, {9, 10}, {11}});
  CHECK(Together(of_ranks, 3).global_size == 2);
  const std::vector<Epoch> of_three = EpochOnRanks(3, pipeline, 0);
  // Ranks 0 and 1 read one example per step, rank 2 reads two. Rank 1 has seven examples.
  CHECK(labels(of_three[2]) == Labels{{12, 13}, {}, {}, {}, {}, {}, {}});
  CHECK(Together(of_three, 0).global_size == 4);
  CHECK(Together(of_three, 3).global_size == 2);
  CHECK(Together(of_three, 6).labels == Ids{11});
}

TEST_CASE("a rank reads no files of other ranks") {
  TemporaryFolder folder;
  const std::vector<IdxFiles> files = WriteFiles(folder, {4, 4});
  const Pipeline pipeline = Pipeline::FromFiles(files).Batch(4);
  WriteFile(files[1].images, Idx({3, 1, 1}, {1, 2, 3}));  // fewer items than when opened
  const Texts errors = OnRanks(2, [&](Communicator& world) {
    Iterator iterator = DistributedPipeline(world, pipeline).Begin();
    iterator.Next();
  });
  CHECK(errors == Texts{"", files[1].images + ": 3 items, expected 4 as when it was opened"});
}

TEST_CASE("automatic sharding is by file if there are several files and at least one per rank") {
  TemporaryFolder folder;
  const Pipeline two = Pipeline::FromFiles(WriteFiles(folder, {6, 6})).Batch(6);
  const auto sharding_of = [](int ranks, const Pipeline& pipeline) {
    Sharding sharding = Sharding::kAuto;
    CHECK(OnRanks(ranks, [&](Communicator& world) {
            const DistributedPipeline distributed(world, pipeline);
            if (world.rank() == 0) sharding = distributed.sharding();
          }) == Nothing(ranks));
    return std::string(NameOf(sharding));
  };
  CHECK(sharding_of(2, two) == "file");
  CHECK(sharding_of(3, two) == "data");
  CHECK(sharding_of(2, Numbers(12).Batch(6)) == "data");
}

TEST_CASE("fewer files than ranks are an error with both numbers on all ranks") {
  TemporaryFolder folder;
  const Pipeline pipeline = Pipeline::FromFiles(WriteFiles(folder, {6, 6})).Batch(6);
  const Texts errors = OnRanks(3, [&](Communicator& world) {
    DistributedPipeline(world, pipeline, {.sharding = Sharding::kFile});
  });
  CHECK(
      errors ==
      Texts(3, "sharding by file: found 2 files for 3 ranks, expected at least one each"));
}

TEST_CASE("a global batch with fewer examples than ranks is an error on all ranks") {
  const Texts errors =
      OnRanks(3, [&](Communicator& world) { DistributedPipeline(world, Numbers(9).Batch(2)); });
  CHECK(
      errors ==
      Texts(3, "a global batch of 2: expected at least 1 example for each of the 3 ranks"));
}

TEST_CASE("different pipelines are an error on all ranks and the error names the differing rank") {
  const Texts errors = OnRanks(3, [&](Communicator& world) {
    const uint64_t batch = world.rank() == 2 ? 8 : 4;
    DistributedPipeline(world, Numbers(9).Batch(batch), {.sharding = Sharding::kData});
  });
  CHECK(
      errors == Texts(
                    3,
                    "input pipelines differ: rank 0 has sharding data, 9 examples of 1x1x1, batch "
                    "4, rank 2 has sharding data, 9 examples of 1x1x1, batch 8"));
}

std::string WarningOn(int ranks, const std::function<DistributedPipeline(Communicator&)>& make) {
  std::vector<std::string> warnings(static_cast<size_t>(ranks));
  CHECK(OnRanks(ranks, [&](Communicator& world) {
          warnings[static_cast<size_t>(world.rank())] = make(world).warning();
        }) == Nothing(ranks));
  CHECK(std::count(warnings.begin(), warnings.end(), warnings[0]) == ranks);
  return warnings[0];
}

TEST_CASE("without sharding a warning appears only if several ranks read the same examples") {
  const DistributeOptions off{.sharding = Sharding::kOff};
  const auto own_seed = [&](Communicator& world) {
    const ShuffleOptions shuffle{.seed = static_cast<uint64_t>(world.rank())};
    return DistributedPipeline(world, Numbers(12).Shuffle(shuffle).Batch(6), off);
  };
  const auto own_shard = [&](Communicator& world) {
    const auto rank = static_cast<uint64_t>(world.rank());
    return DistributedPipeline(world, Numbers(12).Shard(3, rank).Batch(6), off);
  };
  const auto own_data = [&](Communicator& world) {
    const auto rank = static_cast<float>(world.rank());
    return DistributedPipeline(
        world, Pipeline::FromMemory({2, 1}, std::vector<float>{rank, 1}, {0, 1}).Batch(6), off);
  };
  CHECK(
      WarningOn(3, own_seed) ==
      "input: without sharding, several of the 3 ranks see the same examples; give each rank its "
      "own, or shard by data");
  CHECK(WarningOn(3, own_shard) == "");
  CHECK(WarningOn(3, own_data) == "");
  CHECK(WarningOn(1, own_seed) == "");
}

TEST_CASE("without sharding every rank reads all examples and its share of the batch per step") {
  const std::vector<Epoch> of_ranks =
      EpochOnRanks(2, Numbers(5).Batch(4), 0, {.sharding = Sharding::kOff});
  for (const Epoch& epoch : of_ranks) {
    REQUIRE(epoch.size() == 3);
    CHECK(epoch[1].labels == Ids{2, 3});
  }
  CHECK(Together(of_ranks, 0).global_size == 4);
  CHECK(Together(of_ranks, 2).global_size == 2);
}

TEST_CASE("a pipeline function may make pipelines of different lengths on the ranks") {
  const PipelineFunction function = [](const InputContext& input) {
    const auto rank = static_cast<uint64_t>(input.rank);
    return Numbers(10).Shard(static_cast<uint64_t>(input.ranks), rank).Batch(1 + rank);
  };
  std::vector<Epoch> of_ranks(3);
  CHECK(OnRanks(3, [&](Communicator& world) {
          const DistributedPipeline distributed(world, function);
          Expect(distributed.global_batch() == 6);
          Expect(distributed.batches() == 4);
          Expect(distributed.largest_local_batch() == uint64_t(world.rank()) + 1);
          Expect(distributed.warning().empty());
          Iterator iterator = distributed.Begin();
          of_ranks[static_cast<size_t>(world.rank())] = ReadEpoch(iterator);
        }) == Nothing(3));
  CHECK(Together(of_ranks, 0).labels == Ids{0, 1, 4, 2, 5, 8});
  CHECK(Together(of_ranks, 1).labels == Ids{3, 7});
  CHECK(Together(of_ranks, 3).labels == Ids{9});
}

TEST_CASE("an error in one rank's pipeline function is thrown on all ranks with its rank") {
  const Texts errors = OnRanks(3, [&](Communicator& world) {
    DistributedPipeline(world, PipelineFunction([](const InputContext& input) {
                          if (input.rank == 1) throw std::runtime_error("no such bucket");
                          return Numbers(4).Batch(2);
                        }));
  });
  CHECK(errors == Texts(3, "rank 1: no such bucket"));
}

TEST_CASE("largest_local_batch is the size of the largest part of any rank") {
  for (int ranks : {1, 2, 3, 4, 5}) {
    std::vector<uint64_t> promised(static_cast<size_t>(ranks));
    const Pipeline pipeline = Numbers(40).Batch(11);
    CHECK(OnRanks(ranks, [&](Communicator& world) {
            promised[static_cast<size_t>(world.rank())] =
                DistributedPipeline(world, pipeline).largest_local_batch();
          }) == Nothing(ranks));
    uint64_t largest = 0;
    for (const Epoch& epoch : EpochOnRanks(ranks, pipeline, 0))
      for (const Seen& seen : epoch) largest = std::max<uint64_t>(largest, seen.labels.size());
    CHECK(promised == std::vector<uint64_t>(static_cast<size_t>(ranks), largest));
  }
}

}  // namespace
}  // namespace dtrun::models
