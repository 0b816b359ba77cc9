#ifndef DTRUN_RUNTIME_CHECKPOINT_VERDICT_H_
#define DTRUN_RUNTIME_CHECKPOINT_VERDICT_H_

#include <functional>
#include <string>
#include <vector>

#include "ops/communicator.h"

namespace dtrun::runtime {

/// Collective: rank 0 calls `act`; all ranks get its result, or throw the Error that it threw.
std::string OnRootForAll(ops::Communicator& communicator, const std::function<std::string()>& act);

/// Collective: every rank calls `act`; all get the results of all, by rank, or throw the Error of
/// the first rank that threw one, with its name.
std::vector<std::string> OnAllForAll(
    ops::Communicator& communicator, const std::function<std::string()>& act);

}  // namespace dtrun::runtime

#endif
