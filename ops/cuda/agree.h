#ifndef DTRUN_OPS_CUDA_AGREE_H_
#define DTRUN_OPS_CUDA_AGREE_H_

#include <functional>
#include <string>

#include "ops/communicator.h"

namespace dtrun::ops::cuda {

/// Collective: what `ask` returns, or throws as an Error, on the first rank where that is not "",
/// with the rank; "" when there is none. The same on all ranks.
std::string FirstObjection(Communicator& host, const std::function<std::string()>& ask);

/// Collective: does a step of a setup that may fail on this rank alone. Throws Error kUnavailable
/// on all ranks when it has failed on one.
void AgreeOn(Communicator& host, const std::function<void()>& step);

/// Collective: compares what the ranks of `host` have called, by whatever backend it is done.
/// Throws Error kMismatch, on all ranks, with who called what.
void AgreeOnCall(Communicator& host, const Collective& collective);

}  // namespace dtrun::ops::cuda

#endif
