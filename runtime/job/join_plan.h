#ifndef DTRUN_RUNTIME_JOB_JOIN_PLAN_H_
#define DTRUN_RUNTIME_JOB_JOIN_PLAN_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"

namespace dtrun::runtime {

/// What is asked of the machine that this process runs on. A value, so that tests can be another.
struct Machine {
  std::string host_name;
  /// Whether a name or an address is one of this machine. May take as long as the system's
  /// resolver does.
  std::function<bool(const std::string& name)> is_own;
  /// The words of this process's own command line.
  std::function<std::vector<std::string>()> command;
};

Machine ThisMachine();

/// The words as a shell reads them: "./train 'a b'".
std::string ShellLine(const std::vector<std::string>& words);

/// How a process finds the other ranks of its job.
struct JoinPlan {
  enum class Way {
    kAlone,  ///< there is none
    kMpi,    ///< MPI knows
    kLocal,  ///< all are on this host and meet there
    kApart,  ///< they never do anything together: a job with parameter servers
  };
  Way way = Way::kAlone;
  std::string description = "alone";  ///< for people: "through MPI", "by WORLD_SIZE on this host"
  std::string meeting = {};           ///< of kLocal: what all ranks of the job call it
  int rank = 0, size = 1;             ///< of kLocal and kApart
};

/// Whether the user wants this process to be a world of one whatever its environment says
/// (DTRUN_ALONE=1). Throws Error kInvalidArgument for another value than 0 or 1.
bool WantsToBeAlone(const base::GetEnv& get);

/// From the environment alone; never a world of one where that speaks of several ranks. Throws
/// Error kInvalidArgument where variables are missing or contradict each other, and kUnavailable
/// where ranks were started in a way in which they cannot join; the text has the line to type
/// instead.
JoinPlan PlanJoin(
    const base::GetEnv& get, const std::optional<base::LaunchEnv>& launch, const Machine& machine);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_JOB_JOIN_PLAN_H_
