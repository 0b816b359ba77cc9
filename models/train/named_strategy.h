#ifndef DTRUN_MODELS_TRAIN_NAMED_STRATEGY_H_
#define DTRUN_MODELS_TRAIN_NAMED_STRATEGY_H_

#include <dtrun/strategies.h>

#include <memory>
#include <string>

namespace dtrun::models {

/// MakeStrategy for what a user has written on a command line. Collective. Throws AgreedError with
/// exit code kUsage for what cannot be made.
std::unique_ptr<Strategy> MakeNamedStrategy(Context& job, const std::string& spec);

}  // namespace dtrun::models

#endif
