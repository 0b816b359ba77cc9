// The trainer's MPI communicator, if there is one, decides which processes belong together.
// Otherwise the environment decides (join_plan.h): MPI connects the ranks, the ranks meet on this
// host or at an address, which another MPI's launcher may tell them, each rank stays apart
// (parameter servers), or there is a single rank. If dtrun launched the ranks, the launcher's host
// list has the host of each rank. Otherwise MPI knows the hosts, or the ranks tell each other.

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>

#include "base/process.h"
#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/bootstrap/pmi.h"
#include "runtime/job/job_context.h"
#include "runtime/job/join_by_hand.h"
#include "runtime/job/join_plan.h"

namespace dtrun::runtime {
namespace {

using base::Text;

// The settings that must be equal on all ranks, one per line.
std::string AgreedLines(
    const std::optional<base::LaunchEnv>& launch, const base::Options& options) {
  std::vector<std::string> lines = base::AgreedOptions(options);
  lines.insert(lines.begin(), Text("version=", base::kVersion));
  lines.push_back(Text("job=", launch ? launch->job : "(not started by dtrun)"));
  return base::Join(lines, "\n");
}

// Throws an error with the first line that differs and its two values.
[[noreturn]] void ThrowDisagreement(const std::vector<std::string>& all, size_t other) {
  const std::vector<std::string> first = base::Split(all[0], '\n'),
                                 second = base::Split(all[other], '\n');
  for (size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    const std::string a = i < first.size() ? first[i] : "nothing",
                      b = i < second.size() ? second[i] : "nothing";
    if (a == b) continue;
    throw Error(
        ErrorCode::kMismatch,
        Text(
            "the ranks were started differently: rank 0 has ", a, ", rank ", other, " has ", b,
            " (is a DTRUN_ variable set on one host only?)"));
  }
  throw Error(ErrorCode::kMismatch, "the ranks were started differently");
}

void Agree(ops::Bootstrap& bootstrap, const std::string& mine) {
  const std::vector<std::string> all = bootstrap.AllGather(mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) ThrowDisagreement(all, rank);
  }
}

std::vector<int> AllGatherInt(ops::Bootstrap& bootstrap, int mine) {
  std::vector<int> all;
  for (const std::string& text : bootstrap.AllGather(Text(mine))) {
    all.push_back(static_cast<int>(base::ParseInteger(text).value_or(0)));
  }
  return all;
}

// The launcher's placement, reduced to the ranks in `launch_ranks`.
Placement PlaceByLaunch(const Placement& launched, const std::vector<int>& launch_ranks) {
  std::vector<int> leaders;
  std::vector<std::string> names;
  for (const int rank : launch_ranks) {
    const int host = launched.host_of_rank[static_cast<size_t>(rank)];
    leaders.push_back(host);
    names.push_back(launched.hosts[static_cast<size_t>(host)].name);
  }
  return PlaceByLeaders(leaders, names);
}

Placement Place(
    ops::MpiJob& mpi, const std::optional<base::LaunchEnv>& launch, const std::vector<int>& ranks) {
  ops::Bootstrap& bootstrap = mpi.bootstrap();
  if (!launch) {
    return PlaceByLeaders(
        AllGatherInt(bootstrap, mpi.host_leader()), bootstrap.AllGather(mpi.host_name()));
  }
  const Placement launched = PlaceByHostList(launch->hosts);
  const int highest = *std::max_element(ranks.begin(), ranks.end());
  if (highest >= base::RankCount(launch->hosts)) {
    throw Error(
        ErrorCode::kMismatch, Text(
                                  "dtrun started ", base::RankCount(launch->hosts),
                                  " ranks, but MPI has a rank ", highest));
  }
  return PlaceByLaunch(launched, ranks);
}

[[noreturn]] void RefuseOtherMpi(const JoinPlan& plan) {
  const bool open_mpi = plan.way == JoinPlan::Way::kMpi;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "this process was started as one of several ",
          open_mpi ? "by Open MPI's launcher" : plan.description,
          ", but the program's own MPI is of another kind, so MPI_COMM_WORLD has one rank; start "
          "the program with the launcher of its MPI"));
}

// Throws if no MPI launcher started the ranks. Then each process is alone in MPI_COMM_WORLD.
void CheckMpiKnows(const JoinPlan& plan) {
  if (plan.way == JoinPlan::Way::kApart)
    throw Error(
        ErrorCode::kUnavailable,
        "Init got an MPI communicator in a job with parameter servers (dtrun --ps): the job "
        "continues without a lost rank, but MPI does not; call Init without a communicator");
  if (plan.way == JoinPlan::Way::kAlone || plan.way == JoinPlan::Way::kMpi) return;
  if (plan.way == JoinPlan::Way::kPmi) RefuseOtherMpi(plan);
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "this is rank ", plan.rank, " of ", plan.size, " (joined ", plan.description,
          "), but no MPI launcher has started it, so MPI_COMM_WORLD has one rank; start the "
          "program with dtrun --launcher mpirun, or call Init without a communicator"));
}

// Hides PMIX_RANK, because MPI_Init sets it in a process that no launcher started.
base::GetEnv WithoutPmix(const base::GetEnv& get) {
  return [&get](const std::string& name) { return name == "PMIX_RANK" ? std::nullopt : get(name); };
}

Job Alone(const std::optional<base::LaunchEnv>& launch, const Machine& machine) {
  Job job;
  job.placement = PlaceByHostList(
      launch ? launch->hosts : std::vector<base::HostSlots>{{machine.host_name, 1}});
  job.members = ops::Members::World(1);
  return job;
}

Job JoinApart(const JoinPlan& plan, const base::LaunchEnv& launch) {
  Job job;
  job.apart = true;
  job.placement = PlaceByHostList(launch.hosts);
  job.members = ops::Members::World(1);
  job.members.world_ranks = {plan.rank};
  return job;
}

Job JoinOnThisHost(
    const JoinPlan& plan, const std::optional<base::LaunchEnv>& launch, const Machine& machine,
    const base::Options& options) {
  // If dtrun watches Init, dtrun warns of a missing rank and ends the job, because it knows the
  // state of the missing rank. So this rank does not warn, and waits longer than dtrun.
  constexpr std::chrono::seconds kLauncherFirst{5};
  const bool judged = launch && !launch->shutdown_note.empty();
  const base::LogSink log = base::StderrSink(plan.rank, options.log_level);
  const auto warn = [log](const std::string& text) { log(base::LogLevel::kWarning, text); };
  ops::LocalMeeting meeting = {
      .name = plan.meeting,
      .rank = plan.rank,
      .size = plan.size,
      .timeout = std::chrono::seconds(options.timeout_s),
      .warning_after = std::chrono::seconds(options.stall_warning_s),
      .warn = {},
      .rank_of = base::RankOfProcess};
  if (judged) meeting.timeout += kLauncherFirst;
  if (!judged) meeting.warn = warn;
  Job job;
  job.meeting = ops::JoinLocally(meeting);
  Agree(*job.meeting, AgreedLines(launch, options));
  job.placement = PlaceByHostList(
      launch ? launch->hosts : std::vector<base::HostSlots>{{machine.host_name, plan.size}});
  job.members = ops::Members::World(plan.size);
  return job;
}

// Equal for processes that can share memory and unix sockets: one kernel, one network namespace and
// one user. Containers of one machine differ.
std::string HostIdentity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  struct stat network = {};
  ::stat("/proc/self/ns/net", &network);
  return Text(boot, ' ', network.st_ino, ' ', ::geteuid());
}

// The address of this host in the network of `place`, and its network interface. Sends nothing.
OwnPlace PlaceTowards(const ops::TcpPlace& place) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(place.host.c_str(), Text(place.port).c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  const ops::FileDescriptor socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t length = sizeof own;
  if (::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0)
    return {};
  const auto text_of = [](const sockaddr* address, socklen_t bytes) {
    char text[NI_MAXHOST] = {};
    ::getnameinfo(address, bytes, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    return std::string(text);
  };
  OwnPlace result = {
      .address = text_of(reinterpret_cast<sockaddr*>(&own), length), .interface = ""};
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return result;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(all, &::freeifaddrs);
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != own.ss_family) continue;
    if (text_of(each->ifa_addr, length) == result.address) result.interface = each->ifa_name;
  }
  return result;
}

// The hosts as the ranks describe them. Hosts with equal names are told apart by their addresses.
Placement PlaceByIdentity(
    ops::Bootstrap& bootstrap, const std::string& name, const std::string& address) {
  const std::vector<std::string> identities = bootstrap.AllGather(HostIdentity());
  std::vector<std::string> names = bootstrap.AllGather(name);
  const std::vector<std::string> addresses = bootstrap.AllGather(address);
  std::vector<int> leaders;
  for (const std::string& identity : identities) {
    const auto first = std::find(identities.begin(), identities.end(), identity);
    leaders.push_back(static_cast<int>(first - identities.begin()));
  }
  const std::vector<std::string> given = names;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    for (size_t other = 0; other < names.size(); ++other)
      if (leaders[other] != leaders[rank] && given[other] == given[rank])
        names[rank] = addresses[static_cast<size_t>(leaders[rank])];
  }
  return PlaceByLeaders(leaders, names);
}

void NameHosts(Job& job) {
  if (job.placement.hosts.size() == 1) return;
  for (const int host : job.placement.host_of_rank)
    job.members.hosts.push_back(job.placement.hosts[static_cast<size_t>(host)].name);
}

// The secret of a job that dtrun has started on several hosts, or the trust that the user has set.
Trust TrustOf(const base::GetEnv& get, const std::optional<base::LaunchEnv>& launch) {
  if (!launch) return ReadTrust(get);
  return {.secret = JobSecret(*launch), .networks = {}};
}

Job JoinAtPlace(
    const JoinPlan& plan, const Trust& trust, const std::optional<base::LaunchEnv>& launch,
    const Machine& machine, const base::Options& options,
    const std::function<void(int port)>& listening = {}) {
  const base::LogSink log = base::StderrSink(plan.rank, options.log_level);
  Job job;
  job.meeting = ops::JoinAtStore({
      .place = plan.place,
      .name = plan.meeting,
      .rank = plan.rank,
      .size = plan.size,
      .secret = trust.secret,
      .trusted = trust.networks,
      .timeout = std::chrono::seconds(options.timeout_s),
      .warning_after = std::chrono::seconds(options.stall_warning_s),
      .warn = [log](const std::string& text) { log(base::LogLevel::kWarning, text); },
      .listening = listening,
  });
  Agree(*job.meeting, AgreedLines(launch, options));
  job.own_place = PlaceTowards({plan.place.host, 1});
  job.secret = trust.secret;
  job.placement = launch ? PlaceByHostList(launch->hosts)
                         : PlaceByIdentity(
                               *job.meeting, plan.host.empty() ? machine.host_name : plan.host,
                               job.own_place.address);
  job.members = ops::Members::World(plan.size);
  NameHosts(job);
  return job;
}

// The numeric address at which other hosts reach this one: that of its name, or, if the name leads
// to loopback, that of its first network interface.
std::string AddressForOthers(const std::string& name) {
  const std::string address = PlaceTowards({name, 1}).address;
  if (!address.empty() && !ops::IsTrusted(address, {})) return address;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return address;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(all, &::freeifaddrs);
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    char text[NI_MAXHOST] = {};
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    ::getnameinfo(
        each->ifa_addr, sizeof(sockaddr_in), text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    if (!ops::IsTrusted(text, {})) return text;
  }
  return address;
}

std::string HexOf(const std::string& bytes) {
  std::string hex;
  for (const unsigned char byte : bytes)
    for (const int digit : {byte >> 4, byte & 15}) hex += "0123456789abcdef"[digit];
  return hex;
}

// Rank 0 makes a secret and listens at a free port. The process manager carries both to the others.
Job JoinThroughPmi(JoinPlan plan, const Machine& machine, const base::Options& options) {
  constexpr char kKey[] = "dtrun";
  ops::Pmi pmi(plan.pmi_file, std::chrono::seconds(options.timeout_s));
  plan.meeting = "PMI " + pmi.job();
  if (plan.one_host) return JoinOnThisHost(plan, std::nullopt, machine, options);
  Trust trust;
  if (plan.rank == 0) {
    trust.secret = HexOf(ops::RandomBytes());
    plan.place = {AddressForOthers(plan.place.host), 0};
    return JoinAtPlace(plan, trust, std::nullopt, machine, options, [&](int port) {
      pmi.Put(kKey, Text(plan.place.host, ',', port, ',', trust.secret));
      pmi.Barrier();
    });
  }
  pmi.Barrier();
  const std::vector<std::string> told = base::Split(pmi.Get(kKey), ',');
  const auto port = told.size() == 3 ? base::ParseInteger(told[1]) : std::nullopt;
  if (!port) throw Error(ErrorCode::kUnavailable, "rank 0 has not said where the ranks meet");
  plan.place = {told[0], static_cast<int>(*port)};
  trust.secret = told[2];
  return JoinAtPlace(plan, trust, std::nullopt, machine, options);
}

Job JoinThroughMpi(
    const std::optional<base::LaunchEnv>& launch, const base::Options& options,
    const ops::MpiHandle& handle, const base::GetEnv& get) {
  Job job;
  if (const auto master = ValueOf(get, "MASTER_ADDR")) job.own_place = PlaceTowards({*master, 1});
  job.mpi = ops::JoinMpiJob("", handle, std::chrono::seconds(options.timeout_s));
  ops::Bootstrap& bootstrap = job.mpi->bootstrap();
  Agree(bootstrap, AgreedLines(launch, options));
  job.members.world_ranks = AllGatherInt(bootstrap, job.mpi->launch_rank());
  job.placement = Place(*job.mpi, launch, job.members.world_ranks);
  NameHosts(job);
  return job;
}

Job JoinWithoutMpi(
    const JoinPlan& plan, const std::optional<base::LaunchEnv>& launch, const Machine& machine,
    const base::Options& options, const base::GetEnv& get) {
  switch (plan.way) {
    case JoinPlan::Way::kApart: return JoinApart(plan, *launch);
    case JoinPlan::Way::kLocal: return JoinOnThisHost(plan, launch, machine, options);
    case JoinPlan::Way::kPmi: return JoinThroughPmi(plan, machine, options);
    case JoinPlan::Way::kStore:
      return JoinAtPlace(plan, TrustOf(get, launch), launch, machine, options);
    case JoinPlan::Way::kAlone:
    case JoinPlan::Way::kMpi: break;
  }
  return Alone(launch, machine);
}

// Ranks that meet through their process manager have no MPI otherwise.
bool NeedsMpi(const base::Options& options) {
  return options.backend == "mpi" || options.transport == "mpi";
}

}  // namespace

std::string JobSecret(const base::LaunchEnv& launch) {
  std::ifstream file(launch.secret_file, std::ios::binary);
  std::string secret(std::istreambuf_iterator<char>(file), {});
  if (secret.size() >= 32) return secret;
  throw Error(
      ErrorCode::kSystem, Text("the job's secret cannot be read from '", launch.secret_file, "'"));
}

Job JoinJob(
    const base::GetEnv& get, const std::optional<base::LaunchEnv>& launch,
    const base::Options& options, const ops::MpiHandle& handle, uint32_t epoch) {
  const Machine machine = ThisMachine();
  Job job;
  JoinPlan plan;
  if (handle.comm != nullptr) {
    // Launchers of MPICH and of Intel MPI tell a process less than Open MPI's.
    if (!ops::IsOfMpich(handle.library)) CheckMpiKnows(PlanJoin(get, launch, machine));
    job = JoinThroughMpi(launch, options, handle, get);
    if (job.mpi->launch_size() == 1) {
      const JoinPlan known = PlanJoin(WithoutPmix(get), launch, machine);
      CheckMpiKnows(known);
      if (known.way == JoinPlan::Way::kMpi) RefuseOtherMpi(known);
    }
    job.description = "by the caller's MPI communicator";
  } else if (plan = PlanJoin(get, launch, machine); plan.way == JoinPlan::Way::kMpi) {
    job = JoinThroughMpi(launch, options, handle, get);
    job.description = plan.description;
  } else if (plan.way == JoinPlan::Way::kPmi && NeedsMpi(options)) {
    job = JoinThroughMpi(launch, options, {.library = "MPICH"}, get);
    job.description = plan.description;
  } else {
    if (epoch > 0) plan.meeting += Text(" epoch ", epoch);
    job = JoinWithoutMpi(plan, launch, machine, options, get);
    job.description = plan.description;
  }
  const int alone = job.apart ? plan.rank : 0;
  if (launch && !launch->members.empty()) job.members.world_ranks = launch->members;
  job.topology =
      TopologyOf(job.placement, job.bootstrap() == nullptr ? alone : job.bootstrap()->rank());
  return job;
}

}  // namespace dtrun::runtime
