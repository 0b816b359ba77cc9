#ifndef DTRUN_LAUNCHER_SUPPORT_HOST_SYSTEM_H_
#define DTRUN_LAUNCHER_SUPPORT_HOST_SYSTEM_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace dtrun::launcher {

/// What lies in a file of /proc or /sys, in which zeros may stand; nothing if it cannot be opened
/// or read to its end: a process can end between the two.
std::optional<std::string> ReadFileOfSystem(const std::string& path);

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

/// The monotonic clock, one for all processes of a host.
inline int64_t MonotonicNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_SUPPORT_HOST_SYSTEM_H_
