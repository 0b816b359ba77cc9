// A queue over the hierarchical backend. Ranks are threads, and the hosts exist in name only.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "ops/hierarchical/hierarchical_communicator.h"
#include "ops/self/self_communicator.h"
#include "tests/runtime/named/named_ranks.h"
#include "tests/support/reference_communicator.h"

namespace dtrun::testing {
namespace {

using base::Text;

Texts OnHosts(
    const std::vector<int>& host_of_rank, bool engine_thread,
    const std::function<void(NamedRank&)>& rank_main) {
  const base::SteadyClock clock;
  const ops::HostMap hosts(host_of_rank);
  return RunRanks(hosts.size(), [&](ops::Bootstrap& bootstrap) {
    ops::Engine engine({.may_spin = false}, clock, [](auto, const auto&) {});
    ops::Members members = ops::Members::World(hosts.size());
    for (const int host : host_of_rank) members.hosts.push_back(Text("h", host));
    const std::vector<int>& here = hosts.ranks(hosts.host(bootstrap.rank()));
    ops::SubsetBootstrap host_bootstrap(bootstrap, here);
    auto local = here.size() == 1
                     ? ops::CreateSelfCommunicator(members.Subset(here, ""))
                     : ops::CreateShmCommunicator(host_bootstrap, engine, members.Subset(here, ""));
    host_bootstrap.Finish();
    const auto world = ops::CreateHierarchicalCommunicator(
        std::move(local), CreateReferenceCommunicator(bootstrap, engine, members), hosts,
        ops::Route{}, engine, members);
    if (engine_thread) engine.StartThread();
    NamedQueue queue(*world, engine, [](auto, const auto&) {}, {});
    NamedRank rank{*world, engine, queue, bootstrap.rank(), bootstrap.size()};
    rank_main(rank);
    world->Barrier();
  });
}

TEST_CASE("ranks of several hosts can submit in different orders and disagree and join") {
  const std::vector<int> hosts =
      GENERATE(std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 1});
  const bool thread = GENERATE(false, true);
  const Texts errors = OnHosts(hosts, thread, [](NamedRank& r) {
    constexpr int kTensors = 10;
    for (int step = 0; step < 5; ++step) {
      std::vector<std::vector<float>> values(kTensors);
      std::vector<NamedWork> works;
      for (int i = 0; i < kTensors; ++i) {
        const int name = (3 * i + r.rank * 7) % kTensors;
        values[static_cast<size_t>(name)].assign(33, static_cast<float>(name + r.rank));
        works.push_back(r.AllReduce(Text(name), values[static_cast<size_t>(name)]));
      }
      for (NamedWork& work : works) work.Wait();
      for (int name = 0; name < kTensors; ++name) {
        const int sum = r.size * name + r.size * (r.size - 1) / 2;
        ExpectEqual(
            values[static_cast<size_t>(name)], std::vector<float>(33, static_cast<float>(sum)),
            Text("tensor ", name));
      }
    }
    std::vector<float> wrong(4);
    const auto n = static_cast<uint64_t>(r.rank == 0 ? 3 : 4);
    const std::string error =
        ErrorOf(r.Submit(Kind::kAllReduce, "x", Buffer(wrong.data(), n), {n}));
    Expect(
        error.starts_with("2: tensor 'x': the ranks disagree on the shape: rank 0 (h0) submitted"),
        error);
    for (int step = 0; step <= r.rank; ++step) {
      std::vector<float> mean = {3};
      r.AllReduce("mean", mean, ReduceOp::kAverage).Wait();
      ExpectEqual(mean, {3}, "the mean of those that take part");
    }
    NamedWork join = r.queue.Join();
    join.Wait();
    Expect(join.last_joined() == r.size - 1, "the last to join");
  });
  CHECK(errors == Nothing(static_cast<int>(hosts.size())));
}

}  // namespace
}  // namespace dtrun::testing
