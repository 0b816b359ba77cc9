#ifndef DTRUN_LAUNCHER_DOCTOR_CHILD_H_
#define DTRUN_LAUNCHER_DOCTOR_CHILD_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun::launcher {

/// A child process that exchanges lines of text with this process. The child dies with the thread
/// that created it; the destructor kills it. One thread at a time.
class Child {
 public:
  using Clock = std::chrono::steady_clock;

  /// `words[0]` is looked up in PATH. `variables` are added to this process's environment and
  /// replace variables of the same name. A program that cannot be started prints the reason to
  /// stderr and exits with 127. Throws LaunchError kInternal if no process or pipe can be made.
  explicit Child(
      const std::vector<std::string>& words,
      const std::vector<std::pair<std::string, std::string>>& variables = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Never blocks: text that the child's stdin does not take at once is lost.
  void Write(const std::string& text);
  /// The next line of the child's stdout, without the newline. At `deadline` or at the end of
  /// stdout: the unfinished line, or nullopt if there is none. Also nullopt if a line is longer
  /// than 1 MiB.
  std::optional<std::string> ReadLine(Clock::time_point deadline);
  /// Closes the child's stdin, reads the remaining output and waits for the end. Returns the exit
  /// code, or 128 + signal; nullopt: the child still runs at `deadline`.
  std::optional<int> Wait(Clock::time_point deadline);

  /// The last 4 KiB of the child's stderr so far.
  const std::string& complaint() const { return complaint_; }

 private:
  bool ReadSome(Clock::time_point deadline);

  pid_t process_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  int end_ = -1;  // pidfd
  std::string line_, complaint_;
};

/// The output and the end of a program.
struct Said {
  std::string out, err;
  std::optional<int> exit_code;  ///< nullopt: it was killed at the deadline
};
/// Runs a program to its end, or kills it at `deadline`.
Said RunToEnd(
    const std::vector<std::string>& words, Child::Clock::time_point deadline,
    const std::vector<std::pair<std::string, std::string>>& variables = {});

}  // namespace dtrun::launcher

#endif
