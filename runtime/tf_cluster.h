#ifndef DTRUN_RUNTIME_TF_CLUSTER_H_
#define DTRUN_RUNTIME_TF_CLUSTER_H_

#include <string>
#include <vector>

namespace dtrun::runtime {

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

}  // namespace dtrun::runtime

#endif
