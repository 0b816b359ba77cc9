#include "tests/runtime/sharded_ranks.h"

#include <memory>

#include "base/text.h"
#include "ops/collective/host_map.h"
#include "ops/engine/flight_recorder.h"
#include "ops/engine/progress_engine.h"
#include "ops/hierarchical/hierarchical_communicator.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"
#include "runtime/c_api/handles.h"
#include "tests/support/reference_communicator.h"

namespace dtrun::testing {
namespace {

std::unique_ptr<ops::Communicator> CreateHosts(
    ops::Bootstrap& bootstrap, ops::Engine& engine, ops::Members members) {
  std::vector<int> host_of_rank;
  for (int r = 0; r < bootstrap.size(); ++r) {
    host_of_rank.push_back(r / 2);
    members.hosts.push_back(base::Text("h", r / 2));
  }
  const ops::HostMap hosts(host_of_rank);
  const std::vector<int>& here = hosts.ranks(hosts.host(bootstrap.rank()));
  ops::SubsetBootstrap within(bootstrap, here);
  auto local = here.size() == 1
                   ? ops::CreateSelfCommunicator(members.Subset(here, ""))
                   : ops::CreateShmCommunicator(within, engine, members.Subset(here, ""));
  within.Finish();
  auto cross = CreateReferenceCommunicator(bootstrap, engine, members);
  return ops::CreateHierarchicalCommunicator(
      std::move(local), std::move(cross), hosts, {}, engine, members);
}

std::unique_ptr<ops::Communicator> Create(
    Backend backend, ops::Bootstrap& bootstrap, ops::Engine& engine) {
  ops::Members members = ops::Members::World(bootstrap.size());
  if (bootstrap.size() == 1) return ops::CreateSelfCommunicator(members);
  if (backend == Backend::kShm) return ops::CreateShmCommunicator(bootstrap, engine, members);
  if (backend == Backend::kHosts && bootstrap.size() > 2)
    return CreateHosts(bootstrap, engine, members);
  return CreateReferenceCommunicator(bootstrap, engine, members);
}

}  // namespace

Texts OnRanks(int size, Backend backend, const std::function<void(Communicator&)>& rank_main) {
  const base::SteadyClock clock;
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    const auto recorder = ops::FlightRecorder::InMemory(bootstrap.rank(), "here");
    ops::Engine engine({.may_spin = false, .recorder = recorder}, clock, [](auto, const auto&) {});
    const auto communicator = Create(backend, bootstrap, engine);
    dtrun_communicator handle{
        {.recorder = recorder.get()}, communicator.get(), nullptr, {.bucket_bytes = 1024}};
    Communicator world(&handle, Communicator::Ownership::kBorrowed);
    rank_main(world);
  });
}

}  // namespace dtrun::testing
