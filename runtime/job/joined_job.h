#ifndef DTRUN_RUNTIME_JOB_JOINED_JOB_H_
#define DTRUN_RUNTIME_JOB_JOINED_JOB_H_

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

/// The ranks that a process belongs to, before anything but a bootstrap connects them.
struct Job {
  std::unique_ptr<ops::MpiJob> mpi;       ///< null where MPI has not joined them
  std::unique_ptr<ops::Bootstrap> local;  ///< null where they have not met on this host
  std::string description;                ///< how they were joined: "through MPI"
  Placement placement;
  Topology topology{};
  /// The ranks by what they were launched as, with their hosts if there are several; in a job with
  /// parameter servers this one alone.
  ops::Members members;
  /// In a job with parameter servers each rank is a world of its own: who is lost is missed by
  /// nobody's collectives.
  bool apart = false;

  /// What the launcher calls this rank.
  int launch_rank() const {
    return members.world_ranks[apart ? 0 : static_cast<size_t>(topology.rank)];
  }

  /// Between the ranks; null in a world of one that nobody has joined.
  ops::Bootstrap* bootstrap() const { return mpi != nullptr ? &mpi->bootstrap() : local.get(); }
};

/// Joins the processes of `handle`, or without one those that were launched together with this one
/// (join_plan.h; none: a world of one). Collective over them. Agrees with them on version, launch
/// and options; throws Error kMismatch, which names the first difference, and what PlanJoin,
/// ops::JoinLocally and ops::JoinMpiJob do.
Job JoinJob(
    const base::GetEnv& get, const std::optional<base::LaunchEnv>& launch,
    const base::Options& options, const ops::MpiHandle& handle);

}  // namespace dtrun::runtime

#endif
