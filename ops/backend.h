#ifndef DTRUN_OPS_BACKEND_H_
#define DTRUN_OPS_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "ops/bootstrap.h"
#include "ops/communicator.h"
#include "ops/cuda/device_backends.h"
#include "ops/engine.h"
#include "ops/mpi/mpi_module.h"
#include "ops/reduce/instruction_set.h"
#include "ops/route.h"

namespace dtrun::ops {

/// What a backend may use to serve the ranks of `bootstrap`, as one of them sees it.
struct World {
  Bootstrap* bootstrap = nullptr;       ///< null in a world of one
  MpiJob* mpi = nullptr;                ///< null when no MPI launcher has started this process
  std::vector<int> host_of_rank = {0};  ///< equal numbers: the same host
  Members members = {};                 ///< the ranks' names
  WireDType wire = WireDType::kNone;    ///< as what f32 gradients cross between hosts
  DeviceSettings devices = {};          ///< of what lies on GPUs
};

/// The communicator of all ranks on the best backend: the first one, in the order of the table in
/// backend.cc, that every rank can use. `wanted` is "auto" or the name of the only backend to
/// consider. Why a backend was passed over is logged once, by rank 0. Collective. Throws Error
/// kUnavailable, on all ranks, when none is left.
std::unique_ptr<Communicator> CreateWorldCommunicator(
    const World& world, Engine& engine, const std::string& wanted, const base::LogSink& log);

/// Returns the set named `wanted` among `here`, the sets of this rank's CPU; "auto": the first one.
/// Collective over `bootstrap` (null: a world of one), with the same `wanted`. Throws Error
/// kInvalidArgument, the same on all ranks, when the CPU of any of them lacks it.
InstructionSet ChooseInstructionSet(
    const std::string& wanted, const std::vector<InstructionSet>& here, Bootstrap* bootstrap);

}  // namespace dtrun::ops

#endif
