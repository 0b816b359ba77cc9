#ifndef DTRUN_LAUNCHER_SLURM_H_
#define DTRUN_LAUNCHER_SLURM_H_

#include <string>
#include <vector>

#include "launcher/host.h"

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

}  // namespace dtrun::launcher

#endif
