#ifndef DTRUN_LAUNCHER_HOST_SOURCES_H_
#define DTRUN_LAUNCHER_HOST_SOURCES_H_

#include <functional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/host.h"
#include "launcher/options.h"

namespace dtrun::launcher {

/// What is read besides the command line.
struct Surroundings {
  std::function<std::string(const std::string& path)> read_file;  ///< throws UsageError
  base::GetEnv get;
};

/// Text of the file `path` that the user has named as `what`, which an error begins with, as in
/// "host file /tmp: Is a directory". Throws UsageError.
std::string ReadNamedFile(
    const std::string& what, const std::string& path, const Surroundings& surroundings);

/// The hosts of a job, each with its slots and its origin, from the first of these that names any:
/// what the user said (-H or --hostfile, on the command line or in the configuration), TF_CONFIG
/// (not one that an outer dtrun has made for its rank), the Slurm allocation, this host
/// with -np slots. None where nobody says how many ranks there are. Throws UsageError.
std::vector<Host> FindHosts(const Options& options, const Surroundings& surroundings);

}  // namespace dtrun::launcher

#endif
