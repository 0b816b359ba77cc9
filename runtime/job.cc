// Who belongs together says the trainer (an MPI communicator of its own), else the launcher through
// MPI, else nobody: a world of one. Which rank runs on which host says dtrun if it launched them,
// else MPI.

#include "runtime/job.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

using base::Text;

// Launchers that MPI can ask: Open MPI's own, and those that speak PMIx (srun --mpi=pmix, prun).
bool StartedByMpiLauncher(const base::GetEnv& get) {
  const std::string size = get("OMPI_COMM_WORLD_SIZE").value_or("");
  return size.empty() ? get("PMIX_RANK").has_value() : size != "1";
}

std::string OwnHostName() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

Placement PlaceAlone(const std::optional<base::LaunchEnv>& launch) {
  const int expected = launch ? base::RankCount(launch->hosts) : 1;
  if (expected > 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "the environment says that dtrun started ", expected,
            " ranks, but mpirun did not start this process; start it with dtrun, or unset "
            "DTRUN_JOB"));
  }
  return PlaceByHostList(launch ? launch->hosts : std::vector<base::HostSlots>{{OwnHostName(), 1}});
}

// Everything that has to be equal on all ranks, a line each.
std::string AgreedLines(
    const std::optional<base::LaunchEnv>& launch, const base::Options& options) {
  std::vector<std::string> lines = base::AgreedOptions(options);
  lines.insert(lines.begin(), Text("version=", base::kVersion));
  lines.push_back(Text("job=", launch ? launch->job : "(not started by dtrun)"));
  return base::Join(lines, "\n");
}

// Names the first line that differs, with its two values.
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

// What the launcher said of its ranks, for those that are here.
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

}  // namespace

Job JoinJob(
    const base::GetEnv& get, const std::optional<base::LaunchEnv>& launch,
    const base::Options& options, const ops::MpiHandle& handle) {
  Job job;
  if (handle.comm == nullptr && !StartedByMpiLauncher(get)) {
    job.placement = PlaceAlone(launch);
    job.topology = TopologyOf(job.placement, 0);
    job.members = ops::Members::World(1);
    return job;
  }
  job.mpi = ops::JoinMpiJob("", handle, std::chrono::seconds(options.timeout_s));
  ops::Bootstrap& bootstrap = job.mpi->bootstrap();
  Agree(bootstrap, AgreedLines(launch, options));
  job.members.world_ranks = AllGatherInt(bootstrap, job.mpi->launch_rank());
  job.placement = Place(*job.mpi, launch, job.members.world_ranks);
  job.topology = TopologyOf(job.placement, bootstrap.rank());
  if (job.placement.hosts.size() > 1) {
    for (const int host : job.placement.host_of_rank)
      job.members.hosts.push_back(job.placement.hosts[static_cast<size_t>(host)].name);
  }
  return job;
}

}  // namespace dtrun::runtime
