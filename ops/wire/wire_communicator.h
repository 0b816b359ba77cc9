#ifndef DTRUN_OPS_WIRE_WIRE_COMMUNICATOR_H_
#define DTRUN_OPS_WIRE_WIRE_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "ops/bootstrap/bootstrap.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/wire/wire_group.h"

namespace dtrun::ops::wire {

/// Collective over the ranks of `bootstrap`, which are `job_ranks`: a communicator over the wire of
/// `endpoint`. `backend` is the name of the backend, a literal.
std::unique_ptr<Communicator> CreateWireCommunicator(
    const char* backend, std::shared_ptr<Endpoint> endpoint, Bootstrap& bootstrap,
    std::vector<int> job_ranks, Engine& engine, Members members);

/// Collective over `bootstrap`, the ranks of the job: a communicator of all of them over a wire
/// that rings the engine's doorbell. The engine polls the wire from now on. `relays_from`: see
/// Settings.
std::unique_ptr<Communicator> CreateWireWorld(
    const char* backend, std::unique_ptr<Wire> of_job, Bootstrap& bootstrap, Engine& engine,
    Members members, int relays_from);

}  // namespace dtrun::ops::wire

#endif  // DTRUN_OPS_WIRE_WIRE_COMMUNICATOR_H_
