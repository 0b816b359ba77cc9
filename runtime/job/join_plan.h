#ifndef DTRUN_RUNTIME_JOB_JOIN_PLAN_H_
#define DTRUN_RUNTIME_JOB_JOIN_PLAN_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "ops/bootstrap/bootstrap.h"

namespace dtrun::runtime {

/// The facts about the machine of this process that a plan needs. A value, so that tests can
/// describe another machine.
struct Machine {
  std::string host_name;
  /// Returns true if a host name or an address belongs to this machine. It may wait for the
  /// system's resolver.
  std::function<bool(const std::string& name)> is_own;
  /// Returns the words of this process's command line.
  std::function<std::vector<std::string>()> command;
};

Machine ThisMachine();

/// Joins words to a shell command, quoted where needed: "./train 'a b'".
std::string ShellLine(const std::vector<std::string>& words);

/// How a process finds the other ranks of its job.
struct JoinPlan {
  enum class Way {
    kAlone,  ///< a world of one
    kMpi,    ///< MPI connects the ranks
    kLocal,  ///< all ranks are on this host and meet there
    kStore,  ///< the ranks are on any hosts and meet at an address of rank 0's host
    kPmi,    ///< the process manager of another MPI tells the ranks where they meet
    kApart,  ///< a job with parameter servers: its ranks share no collectives
  };
  Way way = Way::kAlone;
  std::string description = "alone";  ///< for people: "through MPI", "by TF_CONFIG, on this host"
  std::string meeting = {};           ///< for kLocal and kStore: a name that all ranks share
  int rank = 0, size = 1;             ///< for all but kAlone and kMpi
  ops::TcpPlace place = {};           ///< for kStore. For kPmi: a name of this host, no port
  int pmi_file = -1;                  ///< for kPmi: the descriptor of its connection
  bool one_host = false;              ///< for kPmi: all ranks are on this host
  std::string host = {};              ///< for kStore: this host's name among the ranks; "": its own
};

/// Returns true if the user wants a world of one, regardless of the environment (DTRUN_ALONE=1).
/// Throws Error kInvalidArgument if the value is neither 0 nor 1.
bool WantsToBeAlone(const base::GetEnv& get);

/// The launch of this process: by dtrun, or of a TF_CONFIG with parameter servers. nullopt if there
/// is none. Throws the errors of PlanJoin.
std::optional<base::LaunchEnv> LaunchOf(const base::GetEnv& get);

/// Plans from the environment alone. Unless DTRUN_ALONE=1, an environment that describes several
/// ranks never becomes a world of one. Throws Error kInvalidArgument if variables are missing or
/// contradict each other. Throws kUnavailable, with the command line to type instead, if the ranks
/// were started in a way in which they cannot join.
JoinPlan PlanJoin(
    const base::GetEnv& get, const std::optional<base::LaunchEnv>& launch, const Machine& machine);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_JOB_JOIN_PLAN_H_
