#ifndef DTRUN_LAUNCHER_HINTS_H_
#define DTRUN_LAUNCHER_HINTS_H_

#include <string>
#include <vector>

#include "launcher/exit_record.h"

namespace dtrun::launcher {

/// What is proved about why this rank's program ended: never a guess. `last_lines` are those that
/// it wrote to stderr.
///   "the kernel killed it for lack of memory: in memory cgroup /train, limited to 64 MiB"
std::vector<std::string> HintsOf(const ExitRecord& record, const std::string& last_lines);

/// "64 MiB", "1.5 GiB", "0 bytes"
std::string BytesInWords(int64_t bytes);

}  // namespace dtrun::launcher

#endif
