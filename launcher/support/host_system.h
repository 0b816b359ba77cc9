#ifndef DTRUN_LAUNCHER_SUPPORT_HOST_SYSTEM_H_
#define DTRUN_LAUNCHER_SUPPORT_HOST_SYSTEM_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtrun::launcher {

/// What lies in a file of /proc or /sys, in which zeros may stand; nothing if it cannot be opened
/// or read to its end: a process can end between the two.
std::optional<std::string> ReadFileOfSystem(const std::string& path);

/// A process, as /proc shows it.
struct ProcessView {
  char state = 'X';  ///< R, S, D, Z (has ended), T (stopped), t (stopped by a debugger) ...
  pid_t parent = -1;
  uint64_t start = 0;  ///< in ticks since the host was booted: no later process of the same id

  bool running() const { return state != 'Z' && state != 'X'; }
  bool stopped() const { return state == 'T' || state == 't'; }
};
/// Nothing when there is no such process.
std::optional<ProcessView> ViewProcess(pid_t process);

/// What comes from `process`: its children, theirs, and so on.
std::vector<pid_t> DescendantsOf(pid_t process);

/// Continues a helper process of dtrun's own, or Open MPI's, that something else has stopped: the
/// job would wait for it for ever.
class StoppedHelper {
 public:
  static constexpr std::chrono::seconds kPatience{2};

  /// Called now and then while `process` is to run. True when it was continued just now.
  bool Look(pid_t process);

 private:
  std::chrono::steady_clock::time_point since_ = {};
};

/// Waits for a child of this process; after `patience` it is killed. A stopped one goes on first.
void AwaitChild(pid_t child, std::chrono::milliseconds patience);

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
