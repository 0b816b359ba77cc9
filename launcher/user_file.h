#ifndef DTRUN_LAUNCHER_USER_FILE_H_
#define DTRUN_LAUNCHER_USER_FILE_H_

#include <string>

namespace dtrun::launcher {

/// Text of a file that the user has named. Throws UsageError that begins with its name where it
/// cannot be read or is larger than 64 MiB.
std::string ReadUserFile(const std::string& path);

}  // namespace dtrun::launcher

#endif
