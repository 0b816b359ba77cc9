#include "base/process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "base/text.h"

namespace dtrun::base {

LogSink StderrSink(int rank, LogLevel most) {
  return [rank, most](LogLevel level, const std::string& line) {
    if (level > most) return;
    const std::string who = rank < 0 ? "" : Text("rank ", rank, ": ");
    const char* severity = level == LogLevel::kError     ? "error: "
                           : level == LogLevel::kWarning ? "warning: "
                                                         : "";
    const std::string text = Text("dtrun: ", who, severity, line, '\n');
    // If stderr is gone, a sink cannot report the error.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  };
}

namespace {

// The number of forks between the process that first used ForkWatch and this process. It belongs to
// the process, not to a job.
std::atomic<int> generation{0};

void CountForks() {
  static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

}  // namespace

ForkWatch::ForkWatch() {
  CountForks();
  generation_ = generation.load(std::memory_order_relaxed);
}

bool ForkWatch::forked() const { return generation_ != generation.load(std::memory_order_relaxed); }

}  // namespace dtrun::base
