#ifndef DTRUN_ERROR_H_
#define DTRUN_ERROR_H_

#include <dtrun/c.h>

#include <stdexcept>
#include <string>

namespace dtrun {

/// Error codes, for programs.
enum class ErrorCode {
  /// the caller's mistake, found before anything was sent
  kInvalidArgument = DTRUN_INVALID_ARGUMENT,
  /// ranks called different operations, or with different arguments
  kMismatch = DTRUN_MISMATCH,
  kPeerLost = DTRUN_PEER_LOST,       ///< a rank died or left
  kTimeout = DTRUN_TIMEOUT,          ///< a rank did not arrive in time
  kUnavailable = DTRUN_UNAVAILABLE,  ///< not built in, not installed or not possible here
  kSystem = DTRUN_SYSTEM,            ///< a call of the operating system or of a library failed
};

/// The one exception type of dtrun. `what()` is one line that names the rank, the cause and the
/// place.
class Error : public std::runtime_error {
 public:
  /// Makes an error with the text `message`, which `what()` returns.
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  /// The code of the error, for programs.
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

namespace detail {

/// Throws the error that a function of the C ABI returned. Null is success.
inline void Check(dtrun_error* error) {
  if (error == nullptr) return;
  Error thrown(static_cast<ErrorCode>(dtrun_error_code(error)), dtrun_error_message(error));
  dtrun_error_destroy(error);
  throw thrown;
}

}  // namespace detail
}  // namespace dtrun

#endif
