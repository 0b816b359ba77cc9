#ifndef DTRUN_LAUNCHER_DOCTOR_CHILD_H_
#define DTRUN_LAUNCHER_DOCTOR_CHILD_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun::launcher {

/// A program with which lines are exchanged. Dies with the thread that has made it; the destructor
/// kills it. One thread at a time.
class Child {
 public:
  using Clock = std::chrono::steady_clock;

  /// `words[0]` is looked up in PATH; `variables` come on top of this process's own. One that
  /// cannot be started ends with 127 and says why on stderr.
  explicit Child(
      const std::vector<std::string>& words,
      const std::vector<std::pair<std::string, std::string>>& variables = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Does not wait for a child that reads nothing.
  void Write(const std::string& text);
  /// The next line on its stdout, without its end; what has no end at the end of all; nothing when
  /// there is none until `deadline`, or it is longer than 1 MiB.
  std::optional<std::string> ReadLine(Clock::time_point deadline);
  /// Reads all that is left and waits for the end. Its exit code, 128 + signal, or nothing when
  /// it runs on.
  std::optional<int> Wait(Clock::time_point deadline);

  /// The last 4 KiB that it has said on stderr so far.
  const std::string& complaint() const { return complaint_; }

 private:
  bool ReadSome(Clock::time_point deadline);

  pid_t process_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  int end_ = -1;  // pidfd
  std::string line_, complaint_;
};

/// What a program has said and how it ended.
struct Said {
  std::string out, err;
  std::optional<int> exit_code;  ///< nothing: it had to be killed
};
Said RunToEnd(
    const std::vector<std::string>& words, Child::Clock::time_point deadline,
    const std::vector<std::pair<std::string, std::string>>& variables = {});

}  // namespace dtrun::launcher

#endif
