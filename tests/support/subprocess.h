#ifndef DTRUN_TESTS_SUPPORT_SUBPROCESS_H_
#define DTRUN_TESTS_SUPPORT_SUBPROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace dtrun::testing {

/// A program to run. Its stdin is empty.
struct Command {
  std::vector<std::string> argv;  ///< the first word is looked up in PATH
  std::vector<std::pair<std::string, std::string>> environment = {};  ///< added to this process's
  std::string folder = {};                                            ///< "": the current one
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< then the program is killed
};

struct CommandResult {
  int exit_code = -1;  ///< 128 + signal when a signal ended it
  bool timed_out = false;
  std::string out;
  std::string err;
};

/// A program that runs in its own process group, with its output collected. Use it on one thread at
/// a time. The destructor kills the group.
class Subprocess {
 public:
  explicit Subprocess(const Command& command);
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& out() const { return result_.out; }
  const std::string& err() const { return result_.err; }

  /// Sends `signal` to the program alone, not to its group.
  void Signal(int signal);

  /// Reads until stdout has `lines` lines. False if the program ends or the time is up first.
  bool WaitForLines(int lines);

  /// Reads until the program ends. Kills its group when the time is up.
  CommandResult Wait();

 private:
  enum class Progress { kMore, kEnded, kTimeout };
  Progress ReadSome();
  void Drain(int& file, std::string& text);

  pid_t pid_ = -1;
  int process_ = -1;  // pidfd
  int out_ = -1;
  int err_ = -1;
  bool reaped_ = false;
  std::chrono::steady_clock::time_point deadline_;
  CommandResult result_;
};

/// Runs `command` to its end.
CommandResult Run(const Command& command);

/// Watches a process, which need not be a child. Make the watch while the process is alive: then a
/// later process with the same id is not taken for it.
class ProcessWatch {
 public:
  explicit ProcessWatch(pid_t pid);
  ~ProcessWatch();
  ProcessWatch(ProcessWatch&& other) noexcept : process_(std::exchange(other.process_, -1)) {}

  /// Whether the process existed when the watch was made.
  bool found() const { return process_ >= 0; }
  /// Whether the process ends within `timeout`.
  bool Ends(std::chrono::milliseconds timeout) const;

 private:
  int process_;
};

/// A new empty folder with mode 0700. The destructor removes the folder.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  /// The names of the entries, sorted.
  std::vector<std::string> Entries() const;
  /// Writes a file into the folder and returns the file's path.
  std::string Write(const std::string& name, const std::string& text, int mode = 0644) const;

 private:
  std::string path_;
};

}  // namespace dtrun::testing

#endif
