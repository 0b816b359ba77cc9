// Every rank probes every backend; the verdicts are gathered before anything is created, so all
// ranks take the same one.

#include "ops/backend.h"

#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"

namespace dtrun::ops {
namespace {

using base::Text;

struct Backend {
  const char* name;
  // Why this rank cannot use it; "" when it can.
  std::string (*probe)(const World&);
  std::unique_ptr<Communicator> (*create)(const World&, Engine&);
};

// In the order of preference.
constexpr Backend kBackends[] = {
    {"self",
     [](const World& world) -> std::string {
       return world.bootstrap == nullptr ? ""
                                         : Text("there are ", world.bootstrap->size(), " ranks");
     },
     [](const World& world, Engine&) { return CreateSelfCommunicator(world.members); }},
    {"shm",
     [](const World& world) -> std::string {
       if (world.bootstrap == nullptr) return "there is one rank";
       return world.host_count == 1 ? "" : Text("the ranks run on ", world.host_count, " hosts");
     },
     [](const World& world, Engine& engine) {
       return CreateShmCommunicator(*world.bootstrap, engine, world.members);
     }},
    {"mpi",
     [](const World& world) -> std::string {
       return world.mpi != nullptr ? "" : "no MPI launcher has started this process";
     },
     [](const World& world, Engine& engine) {
       return world.mpi->CreateCommunicator(engine, world.members);
     }},
};

// The first reason that any rank gave, with the rank; "" when all can use it.
std::string Verdict(const World& world, const Backend& backend) {
  const std::string mine = backend.probe(world);
  if (world.bootstrap == nullptr) return mine;
  const std::vector<std::string> reasons = world.bootstrap->AllGather(mine);
  for (size_t rank = 0; rank < reasons.size(); ++rank) {
    if (!reasons[rank].empty()) return Text("rank ", rank, ": ", reasons[rank]);
  }
  return "";
}

}  // namespace

std::unique_ptr<Communicator> CreateWorldCommunicator(
    const World& world, Engine& engine, const std::string& wanted, const base::LogSink& log) {
  const bool first = world.bootstrap == nullptr || world.bootstrap->rank() == 0;
  std::string refusals;
  for (const Backend& backend : kBackends) {
    // A world of one needs nothing that could be wanted.
    const bool considered =
        wanted == "auto" || wanted == backend.name || world.bootstrap == nullptr;
    if (!considered) continue;
    const std::string reason = Verdict(world, backend);
    if (reason.empty()) {
      if (first) log(base::LogLevel::kInfo, Text("backend ", backend.name, " reduces"));
      return backend.create(world, engine);
    }
    refusals += Text(refusals.empty() ? "" : "; ", backend.name, ": ", reason);
    if (first)
      log(base::LogLevel::kInfo, Text("backend ", backend.name, " is passed over: ", reason));
  }
  throw Error(ErrorCode::kUnavailable, Text("no backend can serve these ranks (", refusals, ")"));
}

}  // namespace dtrun::ops
