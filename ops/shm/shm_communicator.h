#ifndef DTRUN_OPS_SHM_SHM_COMMUNICATOR_H_
#define DTRUN_OPS_SHM_SHM_COMMUNICATOR_H_

#include <memory>

#include "ops/bootstrap/bootstrap.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::ops {

/// Decides if ranks compare their calls before data moves. kOff only measures the cost of the
/// comparison, in a benchmark.
enum class CallChecks { kOn, kOff };

/// A communicator of the ranks of one host, over memory that all of them map. Collective over the
/// ranks of `bootstrap`. The engine outlives all started operations. Throws Error.
std::unique_ptr<Communicator> CreateShmCommunicator(
    Bootstrap& bootstrap, Engine& engine, Members members, CallChecks checks = CallChecks::kOn);

}  // namespace dtrun::ops

#endif
