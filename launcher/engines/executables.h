#ifndef DTRUN_LAUNCHER_ENGINES_EXECUTABLES_H_
#define DTRUN_LAUNCHER_ENGINES_EXECUTABLES_H_

#include <optional>
#include <string>
#include <vector>

#include "launcher/support/launch_error.h"

namespace dtrun::launcher {

/// $HOME, or without it the home folder of this user: Open MPI 5 does not run without.
std::string HomeFolder();

/// The mpirun in `path` ($PATH), of a supported Open MPI. Throws LaunchError kUnavailable that says
/// what to install or which version was found.
std::string FindMpirun(const std::string& path);

/// The first line of `mpirun --version`; "": it cannot be run.
std::string MpirunVersion(const std::string& mpirun);

/// The path of one of dtrun's helper programs, for example "dtrun_agent". Looks in the
/// installation's libexec, then beside this program. Throws LaunchError kInternal.
std::string FindHelper(const std::string& name);

/// One of dtrun's libraries.
struct OwnLibrary {
  std::string name;  ///< "libdtrun.so.0"
  std::string file;  ///< path in this installation; "": not installed beside dtrun
};
std::vector<OwnLibrary> OwnLibraries();

/// Why a file cannot be run, and the exit code of dtrun that says so.
struct FileProblem {
  ExitCode code;    ///< kNotFound or kNotExecutable
  std::string why;  ///< "": it can be run
};
/// Looks for the files that the kernel would refuse: folders, files without permission, and files
/// that are neither a #! script nor a binary for this machine.
FileProblem ProblemOfProgram(const std::string& file);

/// The file that a shell would run for `name`: `name` itself if it has a slash, otherwise the first
/// executable file of that name in the folders of `path` ($PATH). Throws LaunchError with the code
/// of ProblemOfProgram, or kNotFound.
std::string FindProgram(const std::string& name, const std::string& path);

/// The first executable file `name` in the folders of `path`; nullopt: none.
std::optional<std::string> SearchPath(const std::string& name, const std::string& path);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_ENGINES_EXECUTABLES_H_
