#ifndef DTRUN_LAUNCHER_SUPPORT_LAUNCH_ERROR_H_
#define DTRUN_LAUNCHER_SUPPORT_LAUNCH_ERROR_H_

#include <stdexcept>
#include <string>

namespace dtrun::launcher {

/// The exit codes of dtrun itself. If a rank causes the failure, dtrun ends with that rank's code.
/// A rank may use the same numbers.
enum class ExitCode {
  kSuccess = 0,
  kUsage = 2,         ///< wrong command line
  kUnavailable = 69,  ///< Open MPI or a host is missing
  kInternal = 70,     ///< dtrun or Open MPI failed
  kNoResult = 73,     ///< a result file could not be written
  kPreempted = 75,    ///< the ranks were told to end and have saved
  kLeftEarly = 76,    ///< a rank stalled, or left while other ranks needed it
  kTimeout = 124,     ///< --timeout has passed
  kNotExecutable = 126,
  kNotFound = 127,
};

/// The reason why there is no job. `what()` is one line without the prefix "dtrun: ".
class LaunchError : public std::runtime_error {
 public:
  LaunchError(ExitCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

class UsageError : public LaunchError {
 public:
  explicit UsageError(const std::string& message) : LaunchError(ExitCode::kUsage, message) {}
};

}  // namespace dtrun::launcher

#endif
