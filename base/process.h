#ifndef DTRUN_BASE_PROCESS_H_
#define DTRUN_BASE_PROCESS_H_

#include <chrono>
#include <functional>
#include <string>

namespace dtrun::base {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;

/// Where deadlines take the time from: passed in, so that a test can own it. Thread-safe.
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

/// Where everything that the library has to say goes: the library itself never prints. One call is
/// one line, without its newline. Must be thread-safe.
using LogSink = std::function<void(LogLevel, const std::string& line)>;

/// Writes "dtrun: rank 3: line" to stderr in one write, for levels up to `most`. `rank` < 0 is left
/// out.
LogSink StderrSink(int rank, LogLevel most);

/// Tells whether this is still the process that made it, at the cost of a comparison. A child that
/// was forked has copies of memory, but neither the threads nor the peers of its parent.
class ForkWatch {
 public:
  ForkWatch();
  bool forked() const;

 private:
  int generation_;
};

}  // namespace dtrun::base

#endif  // DTRUN_BASE_PROCESS_H_
