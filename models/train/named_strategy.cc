#include "models/train/named_strategy.h"

#include <dtrun/error.h>

#include "models/train/agreement.h"
#include "models/train/exit_codes.h"

namespace dtrun::models {

std::unique_ptr<Strategy> MakeNamedStrategy(Context& job, const std::string& spec) {
  try {
    return MakeStrategy(job, spec);
  } catch (const Error& error) {
    const bool refused =
        error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnavailable;
    throw AgreedError(error.code(), refused ? int{kUsage} : ExitCodeOf(error.code()), error.what());
  }
}

}  // namespace dtrun::models
