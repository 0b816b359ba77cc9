#ifndef DTRUN_RUNTIME_JOB_JOIN_BY_HAND_H_
#define DTRUN_RUNTIME_JOB_JOIN_BY_HAND_H_

#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "runtime/job/join_plan.h"

namespace dtrun::runtime {

/// The job that the variables of other frameworks describe, set by torchrun or by hand: WORLD_SIZE
/// with RANK, MASTER_ADDR and MASTER_PORT (and LOCAL_RANK, LOCAL_WORLD_SIZE), or TF_CONFIG. None
/// where they describe no job; kAlone where they say that there is one rank. Throws as PlanJoin
/// does.
std::optional<JoinPlan> PlanByHand(const base::GetEnv& get, const Machine& machine);

/// The value of a variable that is set and not empty.
std::optional<std::string> ValueOf(const base::GetEnv& get, const std::string& name);

/// The number that a variable holds, if it is set. Throws Error kInvalidArgument for another one.
std::optional<int> NumberOf(
    const base::GetEnv& get, const std::string& name, int least, int most = 1'000'000);

/// What ends every refusal of a job: how to start it, and how to be alone.
///   "dtrun -np 2 ./train"  ->  "; type: dtrun -np 2 ./train (or set DTRUN_ALONE=1 ...)"
std::string InsteadType(const std::string& line);

/// What a TF_CONFIG says of the ranks.
struct TfCluster {
  std::vector<std::string> addresses;  ///< "host:port" by rank: the chief, then the workers
  int rank = -1;                       ///< of this process; -1: it does not say
};

/// No addresses where the text describes no cluster. Throws Error kInvalidArgument for what is no
/// TF_CONFIG, for parameter servers, and for a task that is not one of its cluster.
///   {"cluster": {"chief": ["a:1"], "worker": ["a:2", "b:1"]}, "task": {"type": "worker", "index":
///   1}}  ->  {a:1, a:2, b:1}, rank 2
TfCluster ReadTfCluster(const std::string& text);

/// "[::1]:2222" -> "::1", "h1:2222" -> "h1"
std::string HostOfAddress(const std::string& address);

/// Throws Error kInvalidArgument, which says what is wrong, unless the environment's TF_CONFIG is
/// missing, describes no cluster, or describes this job: as many chiefs and workers as ranks, this
/// process's task at the place of `rank`, and tasks of one host on one host. A host may have several
/// names, so tasks with different names may share one.
void CheckTfJob(const base::GetEnv& get, int rank, const std::vector<int>& host_of_rank);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_JOB_JOIN_BY_HAND_H_
