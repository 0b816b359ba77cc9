#ifndef DTRUN_OPS_NCCL_NCCL_GROUP_H_
#define DTRUN_OPS_NCCL_NCCL_GROUP_H_

#include <functional>
#include <memory>
#include <string>

#include "gpu/gpu_device.h"
#include "ops/communicator/communicator_base.h"
#include "ops/communicator/device_group.h"

namespace dtrun::ops {

/// Why NCCL does not serve the ranks of `host`: it is not installed, or two ranks use one GPU. ""
/// when it does. Collective.
std::string ProbeNccl(Communicator& host, const gpu::Device& device);

/// The ranks of `host` over NCCL, on one host or several: see nccl_group.cc. Collective; throws
/// Error, on all ranks alike, when any of them fails. When something that was enqueued has failed,
/// `before_abort` is called by another thread before any stream goes on; it outlives the group.
std::unique_ptr<DeviceGroup> CreateNcclGroup(
    Communicator& host, const gpu::Device& device, std::function<void()> before_abort = nullptr);

}  // namespace dtrun::ops

#endif
