#ifndef DTRUN_LAUNCHER_SYSTEM_FILE_H_
#define DTRUN_LAUNCHER_SYSTEM_FILE_H_

#include <optional>
#include <string>

namespace dtrun::launcher {

/// Text of a file such as those of /proc; nothing when it cannot be opened. Where the system stops
/// reading in the middle, since the process it speaks of has ended, it is what came before.
std::optional<std::string> ReadFileOfSystem(const std::string& path);

}  // namespace dtrun::launcher

#endif
