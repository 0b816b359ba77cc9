#ifndef DTRUN_LAUNCHER_LIMITS_H_
#define DTRUN_LAUNCHER_LIMITS_H_

#include <cstdint>
#include <string>

namespace dtrun::launcher {

/// What a host allows one process or user.
struct Limits {
  uint64_t files = UINT64_MAX;      ///< open at a time, of a process
  uint64_t processes = UINT64_MAX;  ///< of this user, their threads counted
  uint64_t running = 0;             ///< of these, now; not counted where the limit is far away
};

Limits LimitsOfHost();

/// Throws LaunchError kUnavailable when Open MPI could not start `ranks` ranks on a host with these
/// limits: beyond them it crashes, or waits for ever.
void CheckLimits(const Limits& limits, int ranks);

/// What the user can do about `error` of a system call: ": Too many open files (ulimit -n is 16)".
std::string ErrorWithLimit(int error);

}  // namespace dtrun::launcher

#endif
