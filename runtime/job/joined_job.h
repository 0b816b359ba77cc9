#ifndef DTRUN_RUNTIME_JOB_JOINED_JOB_H_
#define DTRUN_RUNTIME_JOB_JOINED_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/launch_env.h"
#include "base/options.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/collective/collective.h"
#include "ops/mpi/mpi_module.h"
#include "runtime/job/topology.h"

namespace dtrun::runtime {

/// The address of this host that the other hosts reach, and its network interface: "10.0.0.1",
/// "eth0". "": not known.
struct OwnPlace {
  std::string address, interface;
};

/// The ranks of a job before a communicator connects them.
struct Job {
  std::unique_ptr<ops::MpiJob> mpi;         ///< null if MPI does not connect the ranks
  std::unique_ptr<ops::Bootstrap> meeting;  ///< null if the ranks have not met without MPI
  std::string description;                  ///< how the ranks were joined: "through MPI"
  Placement placement;
  Topology topology{};
  /// The ranks by their numbers in the launch, with their hosts if there are several. In a job with
  /// parameter servers: only this rank.
  ops::Members members;
  /// True in a job with parameter servers. There, each rank is a world of its own, so no other
  /// rank's collective waits for a lost rank.
  bool apart = false;
  OwnPlace own_place;
  std::string secret;  ///< known to all ranks; "": none

  /// The launcher's number for this rank.
  int launch_rank() const {
    return members.world_ranks[apart ? 0 : static_cast<size_t>(topology.rank)];
  }

  /// The bootstrap between the ranks. Null in a world of one without MPI, and in a job with
  /// parameter servers.
  ops::Bootstrap* bootstrap() const { return mpi != nullptr ? &mpi->bootstrap() : meeting.get(); }
};

/// The secret of a job that dtrun has started on several hosts. Throws Error kSystem if the file
/// cannot be read.
std::string JobSecret(const base::LaunchEnv& launch);

/// Joins this process with its job. If `handle` has a communicator, the job is its processes.
/// Otherwise it is the processes that were launched together (join_plan.h). A process that was
/// launched alone is a world of one. Collective over these processes, which join the same epoch of
/// the job (JobEpoch).
///
/// Checks that the ranks agree on version, launch and options. Throws Error kMismatch with the
/// first difference, and the errors of PlanJoin, ops::JoinLocally, ops::JoinAtStore and
/// ops::JoinMpiJob. A communicator of processes that MPI did not launch is kInvalidArgument. A
/// communicator in a job with parameter servers is kUnavailable.
Job JoinJob(
    const base::GetEnv& get, const std::optional<base::LaunchEnv>& launch,
    const base::Options& options, const ops::MpiHandle& handle, uint32_t epoch = 0);

}  // namespace dtrun::runtime

#endif
