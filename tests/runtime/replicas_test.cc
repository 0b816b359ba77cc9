// Several replicas in one process, each in a thread of its own.

#include <dtrun/dtrun.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace dtrun {
namespace {

TEST_CASE("the replicas of one process add, gather and train together") {
  Context job = Init();
  CHECK(ReplicasPerProcess(job, "mirrored:cpu,cpu,cpu") == 3);
  CHECK(ReplicasPerProcess(job, "mirrored") == 1);
  CHECK(ReplicasPerProcess(job, "one_device:cpu") == 1);
  std::vector<float> values(3);
  std::atomic<int> chiefs = 0;
  RunReplicas(job, "mirrored:cpu,cpu,cpu", [&](Strategy& strategy) {
    const int replica = strategy.replicas().rank();
    if (strategy.is_chief()) ++chiefs;
    if (strategy.num_replicas_in_sync() != 3) throw std::runtime_error("not 3 replicas");
    auto variable = strategy.Scope().MakeVariable<float>("x", {static_cast<float>(replica + 7)});
    float sum = static_cast<float>(replica + 1);
    strategy.replicas().AllReduce(Buffer(&sum, 1));
    values[static_cast<size_t>(replica)] = sum + variable.Read()[0];
  });
  CHECK(chiefs == 1);
  CHECK(values == std::vector<float>(3, 6 + 7));
  // The job goes on.
  job.world().Barrier();
  RunReplicas(
      job, "mirrored", [&](Strategy& strategy) { CHECK(strategy.num_replicas_in_sync() == 1); });
  job.Shutdown();
}

TEST_CASE("the error of one replica ends the others and is the error of all") {
  Context job = Init();
  std::atomic<int> lost = 0;
  const auto run = [&] {
    RunReplicas(job, "mirrored:cpu,cpu", [&](Strategy& strategy) {
      if (strategy.replicas().rank() == 1) throw std::runtime_error("the data is damaged");
      try {
        strategy.replicas().Barrier();
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kPeerLost) ++lost;
        throw;
      }
    });
  };
  CHECK_THROWS_WITH(run(), "the data is damaged");
  CHECK(lost == 1);
  CHECK_THROWS_WITH(
      RunReplicas(job, "mirrored:cpu,gpuu", [](Strategy&) {}),
      "device 'gpuu'; expected cpu or cuda:N");
  job.Shutdown();
}

}  // namespace
}  // namespace dtrun
