#ifndef DTRUN_LAUNCHER_ENGINE_H_
#define DTRUN_LAUNCHER_ENGINE_H_

#include <string>

namespace dtrun::launcher {

/// The mpirun in `path` (what $PATH says), of an Open MPI that dtrun works with.
/// Throws LaunchError kUnavailable that says what to install or what was found.
std::string FindMpirun(const std::string& path);

/// The file of a program of dtrun's own, "dtrun_rank", "dtrun_agent" or "dtrun_local", beside this
/// one or in the installation's libexec. Throws LaunchError kInternal.
std::string FindHelper(const std::string& name);

}  // namespace dtrun::launcher

#endif
