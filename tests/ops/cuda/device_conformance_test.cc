// The conformance suite over GPU memory, with ranks as threads of one process, on one GPU or two.

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "tests/conformance/suite.h"
#include "tests/ops/cuda/device_job.h"
#include "tests/ops/cuda/device_ranks.h"

namespace dtrun::testing {
namespace {

void Conforms(int size, int gpus, const std::function<void(Ranks&, Findings&)>& check) {
  if (gpu::DeviceCount() < gpus) {
    WARN("SKIPPED: there are fewer than " << gpus << " GPUs");
    return;
  }
  INFO(size << " ranks on " << gpus << " GPUs");
  std::vector<Findings> findings(static_cast<size_t>(size));
  const auto errors = RunDeviceRanks(size, [&](ops::Communicator& communicator) {
    const auto ranks = OverDevice(communicator, communicator.rank() % gpus);
    check(*ranks, findings[static_cast<size_t>(communicator.rank())]);
  });
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(size)));
  for (const Findings& found : findings) {
    CHECK(found.checks > 0);
    CHECK(found.texts == std::vector<std::string>());
  }
}

TEST_CASE("every kind gives the promised bits on a GPU") { Conforms(2, 1, CheckEveryKindIfFull); }

TEST_CASE("every kind gives the promised bits between GPUs") { Conforms(2, 2, CheckEveryKindIfFull); }

TEST_CASE("random operations in flight at once give the promised bits on GPUs") {
  for (const int size : {1, 2, 3, 4}) {
    for (const int gpus : {1, 2}) {
      Conforms(size, gpus, [&](Ranks& ranks, Findings& findings) {
        CheckRandomOperations(ranks, findings, 11, 300, true);
      });
    }
  }
}

TEST_CASE("sums with rounding have the same bits on all ranks of a GPU and in every run") {
  Conforms(2, 1, CheckSameBits);
  Conforms(4, 2, CheckSameBits);
}

TEST_CASE("messages between all pairs and collectives do not wait for each other on GPUs") {
  Conforms(2, 1, CheckMessages);
  Conforms(3, 2, CheckMessages);
}

TEST_CASE("subsets and duplicates and overlapping communicators can share a GPU") {
  Conforms(2, 1, CheckSubCommunicators);
  Conforms(4, 2, CheckSubCommunicators);
}

}  // namespace
}  // namespace dtrun::testing
