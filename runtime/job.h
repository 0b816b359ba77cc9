#ifndef DTRUN_RUNTIME_JOB_H_
#define DTRUN_RUNTIME_JOB_H_

#include <memory>
#include <optional>

#include "base/launch_env.h"
#include "base/options.h"
#include "ops/members.h"
#include "ops/mpi/mpi_module.h"
#include "runtime/topology.h"

namespace dtrun::runtime {

/// The ranks that a process belongs to, before anything but a bootstrap connects them.
struct Job {
  std::unique_ptr<ops::MpiJob> mpi;  ///< null in a world of one
  Placement placement;
  Topology topology{};
  /// The ranks by what they were launched as, with their hosts if there are several.
  ops::Members members;
};

/// Joins the processes of `handle`, or without one those that were launched together with this one
/// (none: a world of one). Collective over them. Agrees with them on version, launch and options;
/// throws Error kMismatch, which names the first difference, kInvalidArgument or kUnavailable.
Job JoinJob(
    const base::GetEnv& get, const std::optional<base::LaunchEnv>& launch,
    const base::Options& options, const ops::MpiHandle& handle);

}  // namespace dtrun::runtime

#endif
