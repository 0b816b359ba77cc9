#ifndef DTRUN_BASE_LOG_H_
#define DTRUN_BASE_LOG_H_

#include <functional>
#include <string>

namespace dtrun::base {

enum class LogLevel { kError, kWarning, kInfo };

/// Where everything that the library has to say goes: the library itself never prints. One call is
/// one line, without its newline. Must be thread-safe.
using LogSink = std::function<void(LogLevel, const std::string& line)>;

/// Writes "dtrun: rank 3: line" to stderr in one write, for levels up to `most`. `rank` < 0 is left
/// out.
LogSink StderrSink(int rank, LogLevel most);

}  // namespace dtrun::base

#endif
