#ifndef DTRUN_LAUNCHER_PROGRAM_H_
#define DTRUN_LAUNCHER_PROGRAM_H_

#include <optional>
#include <string>

namespace dtrun::launcher {

/// The file that a shell would run for `name`: `name` itself when it has a slash, else the first
/// executable file of that name in the folders of `path` (what $PATH says).
/// Throws LaunchError: kNotFound, or kNotExecutable for what the kernel would refuse (a folder, no
/// permission, neither a script with #! nor a binary of this machine's kind).
std::string FindProgram(const std::string& name, const std::string& path);

/// Where `name` stands in `path`; nothing when no executable file of that name does.
std::optional<std::string> SearchPath(const std::string& name, const std::string& path);

}  // namespace dtrun::launcher

#endif
