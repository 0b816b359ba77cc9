#ifndef DTRUN_LAUNCHER_HOSTS_CLUSTER_ENVIRONMENT_H_
#define DTRUN_LAUNCHER_HOSTS_CLUSTER_ENVIRONMENT_H_

#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/hosts/hosts.h"

namespace dtrun::launcher {

/// The names of a node list as Slurm writes it; leading zeros count. Throws UsageError with the
/// column of what is none.
///   "n[1-3,7],gpu[08-10]"  ->  n1, n2, n3, n7, gpu08, gpu09, gpu10
std::vector<std::string> ExpandNodeList(const std::string& text);

/// One number for each node. Throws UsageError.
///   "2(x3),1"  ->  2, 2, 2, 1
std::vector<int> ExpandTaskCounts(const std::string& text);

/// The hosts of an allocation: SLURM_JOB_NODELIST with SLURM_TASKS_PER_NODE, which may be "": then
/// no host says its slots. Throws UsageError that names the variable.
std::vector<Host> SlurmHosts(const std::string& node_list, const std::string& tasks_per_node);

/// The hosts of a TF_CONFIG (JSON): one slot for each chief and worker, in that order. None where
/// it describes no cluster. Throws UsageError for any other text, and for a cluster with parameter
/// servers, which --ps starts.
///   {"cluster": {"worker": ["h1:2222", "h1:2223", "h2:2222"]}}  ->  {{"h1", 2}, {"h2", 1}}
std::vector<Host> TfConfigHosts(const std::string& text);

/// The TF_CONFIG of rank `rank`: a worker on each rank's host, with ports that count up from
/// `first_port` on each host. `first_host` is how the others reach the first host.
std::string WriteTfConfig(
    const std::vector<base::HostSlots>& hosts, const std::string& first_host, int rank,
    int first_port);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_HOSTS_CLUSTER_ENVIRONMENT_H_
