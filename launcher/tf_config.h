#ifndef DTRUN_LAUNCHER_TF_CONFIG_H_
#define DTRUN_LAUNCHER_TF_CONFIG_H_

#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/host.h"

namespace dtrun::launcher {

/// The hosts of a TF_CONFIG (JSON): one slot for each chief and worker, in that order. None where
/// it describes no cluster. Throws UsageError for what is no such JSON, and for parameter servers,
/// which dtrun does not have.
///   {"cluster": {"worker": ["h1:2222", "h1:2223", "h2:2222"]}}  ->  {{"h1", 2}, {"h2", 1}}
std::vector<Host> TfConfigHosts(const std::string& text);

/// The TF_CONFIG of rank `rank`: a worker on each rank's host, with ports that count up from
/// `first_port` on each host. `first_host` is how the others reach the first host.
std::string WriteTfConfig(
    const std::vector<base::HostSlots>& hosts, const std::string& first_host, int rank,
    int first_port);

}  // namespace dtrun::launcher

#endif
