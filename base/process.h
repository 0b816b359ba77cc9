#ifndef DTRUN_BASE_PROCESS_H_
#define DTRUN_BASE_PROCESS_H_

#include <chrono>
#include <functional>
#include <string>

namespace dtrun::base {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;

/// The source of time for deadlines. It is passed in, so that a test can own it. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

class SteadyClock : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

enum class LogLevel { kError, kWarning, kInfo };

/// Receives all messages of the library, which itself never prints. One call is one line, without
/// its newline. Must be thread-safe.
using LogSink = std::function<void(LogLevel, const std::string& line)>;

/// A sink that writes "dtrun: rank 3: line" to stderr in one write, for levels up to `most`. If
/// `rank` < 0, the line has no rank.
LogSink StderrSink(int rank, LogLevel most);

/// Tells whether this process is a forked child of the process that made the object, at the cost of
/// a comparison. A forked child has copies of memory, but neither the threads nor the peers of its
/// parent.
class ForkWatch {
 public:
  ForkWatch();
  bool forked() const;

 private:
  int generation_;
};

/// The entry function of a library of dtrun that only some jobs need. It returns a struct that
/// begins with the version of the build, a `const char*`.
using ModuleEntry = const void* (*)();

/// Loads `file` ("libdtrun_mpi.so"), which lies beside the library or program that holds this
/// function, or in the folder dtrun/ there. If `directory` is not empty, it stands for that folder.
/// Returns the result of the function `entry` of the library. Its version is that of this build.
/// `what` is for errors: "the MPI backend". `global`: other libraries see the symbols of the
/// library and of those that it loads. Throws Error kUnavailable.
const void* LoadModule(
    const std::string& directory, const std::string& file, const char* entry,
    const std::string& what, bool global);

}  // namespace dtrun::base

#endif  // DTRUN_BASE_PROCESS_H_
