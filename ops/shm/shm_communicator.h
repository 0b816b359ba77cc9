#ifndef DTRUN_OPS_SHM_SHM_COMMUNICATOR_H_
#define DTRUN_OPS_SHM_SHM_COMMUNICATOR_H_

#include <memory>

#include "ops/bootstrap/bootstrap.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::ops {

/// Whether ranks compare what they called before data moves. Only a benchmark that wants to know
/// what that costs does without.
enum class CallChecks { kOn, kOff };

/// Ranks of one host, which talk through memory that all of them map. Collective over the
/// bootstrap's ranks. The engine outlives everything that is started. Throws Error.
std::unique_ptr<Communicator> CreateShmCommunicator(
    Bootstrap& bootstrap, Engine& engine, Members members, CallChecks checks = CallChecks::kOn);

}  // namespace dtrun::ops

#endif
