#ifndef DTRUN_LAUNCHER_ENGINES_EXECUTABLES_H_
#define DTRUN_LAUNCHER_ENGINES_EXECUTABLES_H_

#include <optional>
#include <string>
#include <vector>

namespace dtrun::launcher {

/// The mpirun in `path` (what $PATH says), of an Open MPI that dtrun works with.
/// Throws LaunchError kUnavailable that says what to install or what was found.
std::string FindMpirun(const std::string& path);

/// The first line of `mpirun --version`; "" when it cannot be run.
std::string MpirunVersion(const std::string& mpirun);

/// The file of a program of dtrun's own, "dtrun_rank", "dtrun_agent" and so on, beside this one or
/// in the installation's libexec. Throws LaunchError kInternal.
std::string FindHelper(const std::string& name);

/// A library of dtrun's own.
struct OwnLibrary {
  std::string name;  ///< "libdtrun.so.0"
  std::string file;  ///< of this installation; "": not installed beside dtrun
};
std::vector<OwnLibrary> OwnLibraries();

/// The file that a shell would run for `name`: `name` itself when it has a slash, else the first
/// executable file of that name in the folders of `path` (what $PATH says).
/// Throws LaunchError: kNotFound, or kNotExecutable for what the kernel would refuse (a folder, no
/// permission, neither a script with #! nor a binary of this machine's kind).
std::string FindProgram(const std::string& name, const std::string& path);

/// Where `name` stands in `path`; nothing when no executable file of that name does.
std::optional<std::string> SearchPath(const std::string& name, const std::string& path);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_ENGINES_EXECUTABLES_H_
