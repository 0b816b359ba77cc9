#ifndef DTRUN_LAUNCHER_ENGINE_H_
#define DTRUN_LAUNCHER_ENGINE_H_

#include <string>
#include <vector>

namespace dtrun::launcher {

/// The mpirun in `path` (what $PATH says), of an Open MPI that dtrun works with.
/// Throws LaunchError kUnavailable that says what to install or what was found.
std::string FindMpirun(const std::string& path);

/// The first line of `mpirun --version`; "" when it cannot be run.
std::string MpirunVersion(const std::string& mpirun);

/// The file of a program of dtrun's own, "dtrun_rank", "dtrun_agent" and so on, beside this one or in
/// the installation's libexec. Throws LaunchError kInternal.
std::string FindHelper(const std::string& name);

/// A library of dtrun's own.
struct OwnLibrary {
  std::string name;  ///< "libdtrun.so.0"
  std::string file;  ///< of this installation; "": not installed beside dtrun
};
std::vector<OwnLibrary> OwnLibraries();

}  // namespace dtrun::launcher

#endif
