#ifndef DTRUN_RUNTIME_JOB_JOIN_BY_HAND_H_
#define DTRUN_RUNTIME_JOB_JOIN_BY_HAND_H_

#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "base/listen_filter.h"
#include "runtime/job/join_plan.h"

namespace dtrun::runtime {

/// Plans from the variables of other frameworks, set by torchrun or by hand: WORLD_SIZE with RANK,
/// MASTER_ADDR and MASTER_PORT (and LOCAL_RANK, LOCAL_WORLD_SIZE), or TF_CONFIG. nullopt if they
/// describe no job; kAlone if they describe a single rank. Throws the errors of PlanJoin.
std::optional<JoinPlan> PlanByHand(const base::GetEnv& get, const Machine& machine);

/// The plan of rank `rank` of `size`, which another launcher has numbered, if the user has set
/// MASTER_ADDR, MASTER_PORT and a Trust. nullopt if not. `numbered_by` is for people: "Slurm".
/// Throws the errors of PlanJoin.
std::optional<JoinPlan> PlanByNumber(
    const base::GetEnv& get, int rank, int size, const std::string& numbered_by);

/// The launch that a TF_CONFIG with parameter servers describes, for processes started by hand on
/// one host. nullopt if there is no such TF_CONFIG. Throws the errors of PlanJoin.
std::optional<base::LaunchEnv> LaunchByTfConfig(const base::GetEnv& get, const Machine& machine);

/// How a rank that no launcher has started knows that a peer belongs to its job: both know a secret
/// (DTRUN_JOB_SECRET, or the content of the file DTRUN_JOB_SECRET_FILE), or the peer is in a
/// network that the user trusts (DTRUN_TRUSTED_NETWORK).
struct Trust {
  std::string secret;
  std::vector<base::AddressBlock> networks;

  bool empty() const { return secret.empty() && networks.empty(); }
};

/// For messages about ranks that have no Trust.
inline constexpr char kNeedsSecret[] =
    "ranks on several hosts need DTRUN_JOB_SECRET, 16 or more random characters, the same on all "
    "hosts";

/// Reads the variables. Throws Error kInvalidArgument for a secret of fewer than 16 bytes and for a
/// text that names no network, and kSystem if the file cannot be read.
Trust ReadTrust(const base::GetEnv& get);

/// The value of a variable; nullopt if the variable is not set or is empty.
std::optional<std::string> ValueOf(const base::GetEnv& get, const std::string& name);

/// The number in a variable; nullopt if the variable is not set or is empty. Throws Error
/// kInvalidArgument unless the value is a number from `least` to `most`.
std::optional<int> NumberOf(
    const base::GetEnv& get, const std::string& name, int least, int most = 1'000'000);

/// The end of an error message: the command line to type instead, and how to run alone.
///   "dtrun -np 2 ./train"  ->  "; type instead: dtrun -np 2 ./train   (DTRUN_ALONE=1: ...)"
std::string InsteadType(const std::string& line);

/// The ranks that a TF_CONFIG describes.
struct TfCluster {
  std::vector<std::string> addresses;  ///< "host:port" by rank: ps, chief, master, workers,
                                       ///< evaluator
  int rank = -1;                       ///< of this process; -1: not given
  int servers = 0;                     ///< parameter servers (ps), the first ranks
  bool evaluator = false;              ///< the last rank is the evaluator
};

/// Reads a TF_CONFIG. No addresses if the text has no cluster. Throws Error kInvalidArgument if the
/// text is no TF_CONFIG, if the task is not in the cluster, or if the cluster has several
/// evaluators or one without parameter servers.
///   {"cluster": {"chief": ["a:1"], "worker": ["a:2", "b:1"]}, "task": {"type": "worker", "index":
///   1}}  ->  {a:1, a:2, b:1}, rank 2
TfCluster ReadTfCluster(const std::string& text);

/// The host of "host:port"; "" if there is no port. "[::1]:2222" -> "::1", "h1:2222" -> "h1"
std::string HostOfAddress(const std::string& address);

/// Compares the environment's TF_CONFIG, if it is set and has a cluster, with this job. The number
/// of tasks must be the number of ranks, this process must be task `rank`, and tasks with one host
/// name must run on one host. Otherwise throws Error kInvalidArgument with the difference. Tasks
/// with different host names may run on one host, because a host may have several names.
void CheckTfJob(const base::GetEnv& get, int rank, const std::vector<int>& host_of_rank);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_JOB_JOIN_BY_HAND_H_
