#ifndef DTRUN_MODELS_TRAIN_EXIT_CODES_H_
#define DTRUN_MODELS_TRAIN_EXIT_CODES_H_

#include <dtrun/error.h>

namespace dtrun::models {

/// What a trainer's exit code says: the numbers that dtrun documents, some of them sysexits.h's.
enum ExitCode : int {
  kSuccess = 0,
  kUsage = 2,
  kDiverged = 65,  ///< the loss is not a number
  kDataUnusable = 66,
  kInternal = 70,
  kResultNotWritten = 73,
  kRanksDisagree = 76,  ///< or one of them is lost or stalled
};

/// For an error that the runtime reports.
inline int ExitCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return kUsage;
    case ErrorCode::kMismatch:
    case ErrorCode::kPeerLost:
    case ErrorCode::kTimeout: return kRanksDisagree;
    case ErrorCode::kUnavailable:
    case ErrorCode::kSystem: return kInternal;
  }
  return kInternal;
}

}  // namespace dtrun::models

#endif
