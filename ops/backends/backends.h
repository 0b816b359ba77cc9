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
#include "ops/wire/wire.h"

namespace dtrun::ops {

/// The user's settings for GPUs.
struct DeviceSettings {
  std::string backend = "auto";  ///< or the only backends to consider: "cuda_ipc,hierarchical"
  uint64_t memory_bytes = 0;     ///< limit for this process on each GPU; 0: all
};

/// The GPU backends of this build, in the order of the table in device_backends.cc. A build without
/// the CUDA toolkit uses no_device_backends.cc instead, which throws kUnavailable for every group.
/// If a backend promised to serve the ranks but its creation fails, the next one is taken, and
/// `log` gets one warning.
DeviceGroupFactory DeviceBackends(
    const DeviceSettings& settings = {}, const base::LogSink& log = nullptr);

/// The resources from which a rank can make the communicator of all ranks.
struct World {
  Bootstrap* bootstrap = nullptr;       ///< null in a world of one
  MpiJob* mpi = nullptr;                ///< null if no MPI launcher started this process
  std::vector<int> host_of_rank = {0};  ///< equal numbers: the same host
  Members members = {};                 ///< the ranks' names
  WireDType wire = WireDType::kNone;    ///< the type in which f32 gradients cross between hosts
  /// Between hosts: "tcp", "ucx" or "mpi". "auto": mpi if MPI has started the ranks, and if a host
  /// has a network device for remote memory access (RDMA) or no address; otherwise tcp.
  std::string transport = "auto";
  wire::Settings settings = {};  ///< of tcp and ucx
  DeviceSettings devices = {};   ///< for buffers on GPUs
};

/// The communicator of all ranks, on the first backend in the table of backends.cc that every rank
/// can use. `wanted` is "auto" or the name of the only backend to consider. Rank 0 logs why a
/// backend was passed over. Collective. Throws Error kUnavailable, on all ranks, if no backend is
/// left.
std::unique_ptr<Communicator> CreateWorldCommunicator(
    const World& world, Engine& engine, const std::string& wanted, const base::LogSink& log);

/// Returns the set named `wanted` from `here`, the sets of this rank's CPU. "auto" selects the
/// first set. All ranks pass the same `wanted`. Collective over `bootstrap`, which is null in a
/// world of one. Throws Error kInvalidArgument, the same on all ranks, if the CPU of any rank lacks
/// the set.
InstructionSet ChooseInstructionSet(
    const std::string& wanted, const std::vector<InstructionSet>& here, Bootstrap* bootstrap);

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_BACKENDS_BACKENDS_H_
