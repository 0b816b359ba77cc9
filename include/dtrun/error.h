#ifndef DTRUN_ERROR_H_
#define DTRUN_ERROR_H_

#include <dtrun/c.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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
  /// kInvalidArgument: a tensor of this name is under way, or twice in a group
  kDuplicateName = DTRUN_DUPLICATE_NAME,
  kDuplicateSet = DTRUN_DUPLICATE_SET,  ///< kInvalidArgument: a process set of these ranks exists
  kNotInSet = DTRUN_NOT_IN_SET,         ///< kInvalidArgument: this rank is not in the process set
};

/// The one exception type of dtrun. `what()` is one line that names the rank, the cause and the
/// place.
class Error : public std::runtime_error {
 public:
  /// Makes an error with the text `message`, which `what()` returns, about these ranks and this
  /// kind of operation.
  Error(
      ErrorCode code, const std::string& message, std::vector<int> ranks = {},
      std::string operation = "")
      : std::runtime_error(message),
        code_(code),
        ranks_(std::move(ranks)),
        operation_(std::move(operation)) {}
  /// The code of the error, for programs.
  ErrorCode code() const { return code_; }
  /// The ranks that were lost or waited for in vain, with the numbers of the launch, as messages
  /// name them. Empty: the error is about no rank, or it is not known which.
  const std::vector<int>& ranks() const { return ranks_; }
  /// The kind of the operation that failed, for example "all_reduce". Empty: the error is about
  /// none.
  const std::string& operation() const { return operation_; }

 private:
  ErrorCode code_;
  std::vector<int> ranks_;
  std::string operation_;
};

namespace detail {

/// Throws the error that a function of the C ABI returned. Null is success.
inline void Check(dtrun_error* error) {
  if (error == nullptr) return;
  size_t count = 0;
  dtrun_error_ranks(error, nullptr, &count);
  std::vector<int32_t> ranks(count);
  dtrun_error_ranks(error, ranks.data(), &count);
  Error thrown(
      static_cast<ErrorCode>(dtrun_error_code(error)), dtrun_error_message(error),
      std::vector<int>(ranks.begin(), ranks.end()), dtrun_error_operation(error));
  dtrun_error_destroy(error);
  throw thrown;
}

}  // namespace detail
}  // namespace dtrun

#endif
