#ifndef DTRUN_LAUNCHER_SUPPORT_HOST_SYSTEM_H_
#define DTRUN_LAUNCHER_SUPPORT_HOST_SYSTEM_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtrun::launcher {

/// The content of a file in /proc or /sys; it may hold zero bytes. nullopt: the file cannot be
/// opened or read to its end, for example because its process has ended.
std::optional<std::string> ReadFileOfSystem(const std::string& path);

/// A process as /proc shows it.
struct ProcessView {
  char state = 'X';  ///< R, S, D, Z (ended), T (stopped), t (stopped by a debugger) ...
  pid_t parent = -1;
  uint64_t start = 0;  ///< in ticks since boot; differs for a later process with the same id

  bool running() const { return state != 'Z' && state != 'X'; }
  bool stopped() const { return state == 'T' || state == 't'; }
};
/// nullopt: there is no such process.
std::optional<ProcessView> ViewProcess(pid_t process);

/// All descendants of `process`.
std::vector<pid_t> DescendantsOf(pid_t process);

/// Continues a stopped helper process of dtrun or Open MPI. The job would wait for such a process
/// for ever.
class StoppedHelper {
 public:
  static constexpr std::chrono::seconds kPatience{2};

  /// Continues `process` if it has been stopped for kPatience; true if it did so now. Call it now
  /// and then.
  bool Look(pid_t process);

 private:
  std::chrono::steady_clock::time_point since_ = {};
};

/// Waits for a child of this process, and kills it after `patience`. Continues a stopped child
/// first.
void AwaitChild(pid_t child, std::chrono::milliseconds patience);

/// The read end and the write end of a program's output stream.
struct OutputPipe {
  int read = -1;
  int write = -1;
};

/// Throws LaunchError kInternal.
OutputPipe MakePipe();

/// A raw terminal of this size, so that programs write line by line, as for a user; 0: a common
/// size. It does not change the output. If the system has no terminal left, the result is a pipe.
/// Throws LaunchError kInternal.
OutputPipe MakeTerminal(int columns, int rows);

/// The limits of a host for a process or a user.
struct Limits {
  uint64_t files = UINT64_MAX;      ///< open files of a process
  uint64_t processes = UINT64_MAX;  ///< processes and threads of this user
  uint64_t running = 0;             ///< processes and threads now; 0 if the limit is far away
};

Limits LimitsOfHost();

/// Throws LaunchError kUnavailable if `ranks` ranks exceed these limits: Open MPI would crash or
/// wait for ever.
void CheckLimits(const Limits& limits, int ranks);

/// The text of a system call's error, with the limit behind it: ": Too many open files (ulimit -n
/// is 16)".
std::string ErrorWithLimit(int error);

/// The time of the monotonic clock, which all processes of a host share.
inline int64_t MonotonicNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_SUPPORT_HOST_SYSTEM_H_
