#ifndef DTRUN_LAUNCHER_SYSTEM_FILE_H_
#define DTRUN_LAUNCHER_SYSTEM_FILE_H_

#include <optional>
#include <string>

namespace dtrun::launcher {

/// What lies in a file of /proc or /sys, in which zeros may stand; nothing if it cannot be opened
/// or read to its end: a process can end between the two.
std::optional<std::string> ReadFileOfSystem(const std::string& path);

}  // namespace dtrun::launcher

#endif
