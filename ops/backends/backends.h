#ifndef DTRUN_OPS_BACKENDS_BACKENDS_H_
#define DTRUN_OPS_BACKENDS_BACKENDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/communicator/communicator_base.h"
#include "ops/communicator/device_group.h"
#include "ops/engine/progress_engine.h"
#include "ops/mpi/mpi_module.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops {

/// What a user wants of GPUs.
struct DeviceSettings {
  std::string backend = "auto";  ///< or the name of the only one to consider
  uint64_t memory_bytes = 0;     ///< that this process may take of each GPU; 0: all
};

/// The backends of GPUs that this build has, in the order in which they are tried, which is a table
/// in device_backends.cc. Built twice: without the CUDA toolkit no_device_backends.cc takes its
/// place and throws kUnavailable for every group.
DeviceGroupFactory DeviceBackends(const DeviceSettings& settings = {});

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
/// backends.cc, that every rank can use. `wanted` is "auto" or the name of the only backend to
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

#endif  // DTRUN_OPS_BACKENDS_BACKENDS_H_
