#ifndef DTRUN_LAUNCHER_ENGINE_H_
#define DTRUN_LAUNCHER_ENGINE_H_

#include <string>

namespace dtrun::launcher {

/// The mpirun in `path` (what $PATH says), of an Open MPI that dtrun works with.
/// Throws LaunchError kUnavailable that says what to install or what was found.
std::string FindMpirun(const std::string& path);

/// dtrun_rank, installed in ../libexec/dtrun or, in the build tree, beside dtrun.
/// Throws LaunchError kInternal.
std::string FindWrapper();

}  // namespace dtrun::launcher

#endif
