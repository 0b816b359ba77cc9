// The backends are tried in the order of the table. All ranks probe a backend and gather their
// verdicts before any rank creates it, so all ranks choose the same backend. The transport between
// hosts is chosen first, in the same way.

#include "ops/backends/backends.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/tcp_socket.h"
#include "ops/collective/host_map.h"
#include "ops/hierarchical/hierarchical_communicator.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"
#include "ops/tcp/tcp_wire.h"
#include "ops/ucx/ucx_module.h"

namespace dtrun::ops {
namespace {

using base::Text;

constexpr char kTcp[] = "tcp", kUcx[] = "ucx", kMpi[] = "mpi";

struct Backend {
  const char* name;
  // The parts of the backend, for the log.
  std::string (*parts)(const World&);
  // Returns why this rank cannot use the backend, or "". `wanted`: the user requested it by name.
  std::string (*probe)(const World&, bool wanted);
  std::unique_ptr<Communicator> (*create)(const World&, Engine&);
};

int HostCount(const World& world) { return HostMap(world.host_of_rank).host_count(); }

std::unique_ptr<Communicator> CreateWithinHost(
    const World& world, Engine& engine, const HostMap& hosts) {
  const std::vector<int>& here = hosts.ranks(hosts.host(world.bootstrap->rank()));
  Members members = world.members.Subset(here, "");
  SubsetBootstrap bootstrap(*world.bootstrap, here);
  std::unique_ptr<Communicator> created;
  std::exception_ptr error;
  try {
    created = here.size() == 1 ? CreateSelfCommunicator(std::move(members))
                               : CreateShmCommunicator(bootstrap, engine, std::move(members));
  } catch (...) {
    error = std::current_exception();
  }
  bootstrap.Finish();
  if (error) std::rethrow_exception(error);
  return created;
}

// A network device of this host that MPI uses better than TCP does: "mlx5_0"; "" if there is none.
std::string FastDevice() {
  for (const char* folder : {"/sys/class/infiniband", "/sys/class/cxi"}) {
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator(folder, missing))
      return entry.path().filename();
  }
  return "";
}

// Why MPI, which has started the ranks, has to connect the hosts instead of TCP. "" if TCP serves
// this rank.
std::string WhyMpi(const World& world) {
  if (const std::string device = FastDevice(); !device.empty())
    return Text("its host has the network device ", device);
  if (world.settings.address.empty()) return "it knows no address of its host (MASTER_ADDR)";
  if (HostCount(world) > 1 && IsTrusted(world.settings.address, {}))
    return Text("MASTER_ADDR is an address of its own host, ", world.settings.address);
  return "";
}

// The first text that is not empty, with its rank.
std::string FirstOf(const std::vector<std::string>& texts) {
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) return Text("rank ", rank, ": ", texts[rank]);
  }
  return "";
}

// The backend that connects hosts. Collective.
std::string ChooseTransport(const World& world, const base::LogSink& log) {
  if (world.transport != "auto") return world.transport;
  if (world.mpi == nullptr) return kTcp;
  const std::string reason = FirstOf(world.bootstrap->AllGather(WhyMpi(world)));
  if (reason.empty()) return kTcp;
  if (world.bootstrap->rank() == 0)
    log(base::LogLevel::kInfo, Text("the transport is mpi: ", reason));
  return kMpi;
}

const UcxModule* ucx_module = nullptr;

// Loads libdtrun_ucx.so, which lies where libdtrun_mpi.so lies (JoinMpiJob). Returns why UCX cannot
// be used in this process, or "".
std::string LoadUcx() {
  // UCX reads these variables when it is loaded. It would write warnings to stdout, and a backtrace
  // at a crash. Values that the user has set stay.
  ::setenv("UCX_LOG_LEVEL", "error", 0);
  ::setenv("UCX_HANDLE_ERRORS", "none", 0);
  ::setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 0);
  try {
    ucx_module = static_cast<const UcxModule*>(
        base::LoadModule("", "libdtrun_ucx.so", kUcxModuleEntry, "the UCX backend", false));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Why this rank cannot use the backend `name` between hosts, or "".
std::string ProbeCarrier(const World& world, const std::string& name) {
  if (world.bootstrap == nullptr) return "there is one rank";
  if (name == "mpi") return world.mpi != nullptr ? "" : "no MPI launcher has started this process";
  if (name == "tcp" && world.settings.address.empty())
    return "no address of this host is known (MASTER_ADDR)";
  return name == "ucx" ? LoadUcx() : "";
}

std::unique_ptr<Communicator> CreateCarrier(
    const World& world, Engine& engine, const std::string& name) {
  if (name == "mpi") return world.mpi->CreateCommunicator(engine, world.members);
  const auto create = name == "ucx" ? ucx_module->create : tcp::CreateTcpCommunicator;
  return create(*world.bootstrap, engine, world.members, world.settings);
}

// A backend between hosts for all ranks, in the order of preference.
template <const char* kName>
std::string Probe(const World& world, bool wanted) {
  if (!wanted && world.transport != kName) return Text("the transport is ", world.transport);
  return ProbeCarrier(world, kName);
}
template <const char* kName>
std::unique_ptr<Communicator> Create(const World& world, Engine& engine) {
  return CreateCarrier(world, engine, kName);
}

std::string ProbeHierarchical(const World& world, bool wanted) {
  if (world.bootstrap == nullptr) return "there is one rank";
  const HostMap hosts(world.host_of_rank);
  if (!wanted && hosts.host_count() == 1) return "the ranks share a host";
  if (!wanted && hosts.host_count() == hosts.size()) return "no two ranks share a host";
  return ProbeCarrier(world, world.transport);
}

std::unique_ptr<Communicator> CreateHierarchical(const World& world, Engine& engine) {
  const HostMap hosts(world.host_of_rank);
  auto local = CreateWithinHost(world, engine, hosts);
  auto cross = CreateCarrier(world, engine, world.transport);
  return CreateHierarchicalCommunicator(
      std::move(local), std::move(cross), hosts, {.wire = world.wire}, engine, world.members);
}

std::string NoParts(const World&) { return ""; }

// In the order of preference.
constexpr Backend kBackends[] = {
    {"self", NoParts,
     [](const World& world, bool) -> std::string {
       return world.bootstrap == nullptr ? ""
                                         : Text("there are ", world.bootstrap->size(), " ranks");
     },
     [](const World& world, Engine&) { return CreateSelfCommunicator(world.members); }},
    {"shm", NoParts,
     [](const World& world, bool) -> std::string {
       if (world.bootstrap == nullptr) return "there is one rank";
       const int hosts = HostCount(world);
       return hosts == 1 ? "" : Text("the ranks run on ", hosts, " hosts");
     },
     [](const World& world, Engine& engine) {
       return CreateShmCommunicator(*world.bootstrap, engine, world.members);
     }},
    {"hierarchical",
     [](const World& world) {
       return Text(" (shm within each host, ", world.transport, " between them)");
     },
     ProbeHierarchical, CreateHierarchical},
    {kTcp, NoParts, Probe<kTcp>, Create<kTcp>},
    {kUcx, NoParts, Probe<kUcx>, Create<kUcx>},
    {kMpi, NoParts, Probe<kMpi>, Create<kMpi>},
};

// The first reason of any rank, with its rank. "" if all ranks can use the backend.
std::string Verdict(const World& world, const Backend& backend, bool wanted) {
  const std::string mine = backend.probe(world, wanted);
  if (world.bootstrap == nullptr) return mine;
  return FirstOf(world.bootstrap->AllGather(mine));
}

}  // namespace

std::unique_ptr<Communicator> CreateWorldCommunicator(
    const World& given, Engine& engine, const std::string& wanted, const base::LogSink& log) {
  const bool first = given.bootstrap == nullptr || given.bootstrap->rank() == 0;
  World world = given;
  if (world.bootstrap != nullptr) world.transport = ChooseTransport(given, log);
  std::string refusals;
  for (const Backend& backend : kBackends) {
    // A world of one ignores `wanted`, because it needs no backend but self.
    const bool considered =
        wanted == "auto" || wanted == backend.name || world.bootstrap == nullptr;
    if (!considered) continue;
    const std::string reason = Verdict(world, backend, wanted == backend.name);
    if (reason.empty()) {
      if (first)
        log(base::LogLevel::kInfo,
            Text("backend ", backend.name, backend.parts(world), " reduces"));
      auto created = backend.create(world, engine);
      created->UseDevices(DeviceBackends(world.devices, first ? log : nullptr));
      return created;
    }
    refusals += Text(refusals.empty() ? "" : "; ", backend.name, ": ", reason);
    if (first)
      log(base::LogLevel::kInfo, Text("backend ", backend.name, " is passed over: ", reason));
  }
  throw Error(ErrorCode::kUnavailable, Text("no backend can serve these ranks (", refusals, ")"));
}

// "auto" needs no exchange: every CPU has a best set, and all sets give the same bits.
InstructionSet ChooseInstructionSet(
    const std::string& wanted, const std::vector<InstructionSet>& here, Bootstrap* bootstrap) {
  if (wanted == "auto") return here.front();
  std::vector<std::string> names;
  for (const InstructionSet& set : here) names.push_back(set.name);
  const auto found = std::find(names.begin(), names.end(), wanted);
  const std::string mine = found == names.end() ? base::Join(names, ", ") : "";
  const std::vector<std::string> lacking =
      bootstrap == nullptr ? std::vector<std::string>{mine} : bootstrap->AllGather(mine);
  for (size_t rank = 0; rank < lacking.size(); ++rank) {
    if (lacking[rank].empty()) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "reduce_isa is '", wanted, "', which ",
            bootstrap == nullptr ? "this CPU" : Text("the CPU of rank ", rank), " lacks (found ",
            lacking[rank],
            "); expected auto, or an instruction set that the CPUs of all ranks have"));
  }
  return here[static_cast<size_t>(found - names.begin())];
}

}  // namespace dtrun::ops
