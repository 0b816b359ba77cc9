#include "base/log.h"

#include <unistd.h>

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
    // A sink has nobody to report to when stderr is gone.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  };
}

}  // namespace dtrun::base
