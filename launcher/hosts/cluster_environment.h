#ifndef DTRUN_LAUNCHER_HOSTS_CLUSTER_ENVIRONMENT_H_
#define DTRUN_LAUNCHER_HOSTS_CLUSTER_ENVIRONMENT_H_

#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/hosts/hosts.h"

namespace dtrun::launcher {

/// The node names in a node list of Slurm, with leading zeros. Throws UsageError with the column of
/// the error.
///   "n[1-3,7],gpu[08-10]"  ->  n1, n2, n3, n7, gpu08, gpu09, gpu10
std::vector<std::string> ExpandNodeList(const std::string& text);

/// The number of tasks of each node. Throws UsageError.
///   "2(x3),1"  ->  2, 2, 2, 1
std::vector<int> ExpandTaskCounts(const std::string& text);

/// The hosts of an allocation, from SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE. If
/// `tasks_per_node` is "", the slots of the hosts are not given (0). Throws UsageError that names
/// the variable.
std::vector<Host> SlurmHosts(const std::string& node_list, const std::string& tasks_per_node);

/// The hosts of a file with one line per slot, as PBS (PBS_NODEFILE) and LSF (LSB_DJOB_HOSTFILE)
/// write it. Hosts are in the order of their first lines. `origin` is the variable that names the
/// file. Throws UsageError that names variable and line.
///   "h1\nh2\nh1\n"  ->  {{"h1", 2}, {"h2", 1}}
std::vector<Host> SlotFileHosts(const std::string& origin, const std::string& text);

/// The hosts of LSF's LSB_MCPU_HOSTS: names and slots in turn. Throws UsageError.
///   "h1 4 h2 2"  ->  {{"h1", 4}, {"h2", 2}}
std::vector<Host> LsfHosts(const std::string& text);

/// The hosts of Grid Engine's PE_HOSTFILE: one line per host and queue, with the name, the slots,
/// the queue and its processors. Throws UsageError that names the line.
///   "h1 2 all.q@h1 UNDEFINED\n"  ->  {{"h1", 2}}
std::vector<Host> GridEngineHosts(const std::string& text);

/// The cluster of a TF_CONFIG.
struct TfConfig {
  std::vector<Host> hosts;  ///< one slot for each ps, chief, master, worker and evaluator, in order
  int servers = 0;          ///< parameter servers (ps), the first ranks
  bool evaluator = false;   ///< the last rank is the evaluator
};

/// Reads a TF_CONFIG (JSON). No hosts if TF_CONFIG describes no cluster. Throws UsageError for any
/// other text. Also throws if ranks on the hosts would not begin with the parameter servers and end
/// with the evaluator, because ranks are numbered by host.
///   {"cluster": {"worker": ["h1:2222", "h1:2223", "h2:2222"]}}  ->  {{"h1", 2}, {"h2", 1}}
TfConfig ReadTfConfig(const std::string& text);

/// The ranks of a job that are no workers: the first ones are parameter servers, the last one may
/// be an evaluator.
struct TfRoles {
  int servers = 0;
  bool evaluator = false;
};

/// The TF_CONFIG of rank `rank`. The ports count up from `first_port` on each host. `first_host` is
/// the address of the first host for the other hosts.
std::string WriteTfConfig(
    const std::vector<base::HostSlots>& hosts, const TfRoles& roles, const std::string& first_host,
    int rank, int first_port);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_HOSTS_CLUSTER_ENVIRONMENT_H_
