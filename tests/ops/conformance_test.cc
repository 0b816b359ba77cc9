// The conformance suite on every backend that can run as threads of one process.

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "ops/collective/host_map.h"
#include "ops/engine/progress_engine.h"
#include "ops/hierarchical/hierarchical_communicator.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"
#include "ops/tcp/tcp_wire.h"
#include "tests/conformance/ops_ranks.h"
#include "tests/conformance/suite.h"
#include "tests/support/thread_ranks.h"

namespace {

using dtrun::ops::Bootstrap;
using dtrun::ops::Communicator;
using dtrun::ops::Engine;
using dtrun::ops::Members;
using dtrun::testing::Findings;
using dtrun::testing::Ranks;

struct Backend {
  std::string name;
  std::vector<int> sizes;
  bool adds_in_a_tree;  // over all ranks in order, so the suite can predict sums with rounding
  std::unique_ptr<Communicator> (*create)(Bootstrap&, Engine&);
  bool is_brief = false;  // fewer operations: it is slow, or made of others
};

std::unique_ptr<Communicator> CreateShm(Bootstrap& bootstrap, Engine& engine) {
  return dtrun::ops::CreateShmCommunicator(bootstrap, engine, Members::World(bootstrap.size()));
}

std::unique_ptr<Communicator> CreateTcp(Bootstrap& bootstrap, Engine& engine) {
  return dtrun::ops::tcp::CreateTcpCommunicator(
      bootstrap, engine, Members::World(bootstrap.size()), {.address = "127.0.0.1"});
}

// Headers go through relays, as they do among many ranks.
std::unique_ptr<Communicator> CreateRelayedTcp(Bootstrap& bootstrap, Engine& engine) {
  return dtrun::ops::tcp::CreateTcpCommunicator(
      bootstrap, engine, Members::World(bootstrap.size()),
      {.address = "127.0.0.1", .relays_from = 2});
}

// Shared memory within hosts that exist in name only, and `kCross` between them.
template <std::unique_ptr<Communicator> (*kCross)(Bootstrap&, Engine&)>
std::unique_ptr<Communicator> CreateOverHosts(Bootstrap& bootstrap, Engine& engine) {
  const std::vector<int> placements[] = {{0, 1}, {0, 0, 1}, {0, 1, 1, 1}, {0, 1, 0, 2, 0, 2}};
  for (const auto& host_of_rank : placements) {
    const dtrun::ops::HostMap hosts(host_of_rank);
    if (hosts.size() != bootstrap.size()) continue;
    const Members members = Members::World(hosts.size());
    const std::vector<int>& here = hosts.ranks(hosts.host(bootstrap.rank()));
    dtrun::ops::SubsetBootstrap within_host(bootstrap, here);
    auto local = here.size() == 1 ? dtrun::ops::CreateSelfCommunicator(members.Subset(here, ""))
                                  : dtrun::ops::CreateShmCommunicator(
                                        within_host, engine, members.Subset(here, ""));
    within_host.Finish();
    auto cross = kCross(bootstrap, engine);
    return dtrun::ops::CreateHierarchicalCommunicator(
        std::move(local), std::move(cross), hosts, {.chunk_bytes = 16 << 10}, engine, members);
  }
  return nullptr;
}

const Backend kBackends[] = {
    {"self", {1}, true, [](Bootstrap&, Engine&) { return dtrun::ops::CreateSelfCommunicator(); }},
    {"shm", {1, 2, 3, 4, 8}, true, CreateShm},
    {"hierarchical",
     {2, 3, 4, 6},
     false,
     CreateOverHosts<CreateShm>,
     !dtrun::testing::RunsInFull()},
    {"tcp", {2, 3, 4, 8}, true, CreateTcp, true},
    {"tcp through relays", {2, 3, 5, 8}, true, CreateRelayedTcp, true},
    {"hierarchical over tcp", {3, 4, 6}, false, CreateOverHosts<CreateTcp>, true},
};

// Runs `check` on every size of the backend. Every rank must make checks and find no error.
void Conforms(const Backend& backend, const std::function<void(Ranks&, Findings&)>& check) {
  const dtrun::base::SteadyClock clock;
  for (const int size : backend.sizes) {
    INFO(backend.name << ", " << size << " ranks");
    std::vector<Findings> findings(static_cast<size_t>(size));
    const auto errors = dtrun::testing::RunRanks(size, [&](Bootstrap& bootstrap) {
      Engine engine(
          {.timeout = std::chrono::seconds(30), .may_spin = false}, clock,
          [](auto, const auto&) {});
      const auto communicator = backend.create(bootstrap, engine);
      check(
          *dtrun::testing::OverOps(*communicator), findings[static_cast<size_t>(bootstrap.rank())]);
    });
    CHECK(errors == std::vector<std::string>(static_cast<size_t>(size)));
    for (const Findings& found : findings) {
      CHECK(found.checks > 0);
      CHECK(found.texts == std::vector<std::string>());
    }
  }
}

TEST_CASE("every collective gives the promised bits for all types and ops and roots and sizes") {
  // With many ranks on few cores, each kind takes its turn with types, ops and roots.
  for (const Backend& backend : kBackends) {
    Conforms(backend, [&](Ranks& ranks, Findings& findings) {
      if (backend.is_brief || ranks.size() > 4)
        dtrun::testing::CheckEveryKindInTurn(ranks, findings);
      else
        dtrun::testing::CheckEveryKind(ranks, findings);
    });
  }
}

TEST_CASE("random operations in flight at once give the promised bits") {
  for (const Backend& backend : kBackends) {
    Conforms(backend, [&](Ranks& ranks, Findings& findings) {
      for (const uint64_t seed : {11, 12, 13}) {
        dtrun::testing::CheckRandomOperations(
            ranks, findings, seed, backend.is_brief ? 500 : 1500, backend.adds_in_a_tree);
      }
    });
  }
}

TEST_CASE("sums with rounding have the same bits on all ranks and in every run") {
  for (const Backend& backend : kBackends) Conforms(backend, dtrun::testing::CheckSameBits);
}

TEST_CASE("messages between all pairs and collectives do not wait for each other") {
  for (const Backend& backend : kBackends) Conforms(backend, dtrun::testing::CheckMessages);
}

TEST_CASE("subsets and duplicates and overlapping communicators work side by side") {
  for (const Backend& backend : kBackends) Conforms(backend, dtrun::testing::CheckSubCommunicators);
}

}  // namespace
