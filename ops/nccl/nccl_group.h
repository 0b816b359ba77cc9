#ifndef DTRUN_OPS_NCCL_NCCL_GROUP_H_
#define DTRUN_OPS_NCCL_NCCL_GROUP_H_

#include <memory>
#include <string>

#include "gpu/gpu_device.h"
#include "ops/communicator/communicator_base.h"
#include "ops/communicator/device_group.h"

namespace dtrun::ops {

/// Returns the reason why NCCL does not serve the ranks of `host` (two ranks use one GPU), or "".
/// Throws Error kUnavailable if NCCL is not installed. Collective.
std::string ProbeNccl(Communicator& host, const gpu::Device& device);

/// Creates a group of the ranks of `host` over NCCL, on one host or several: see nccl_group.cc.
/// Collective. Throws Error on all ranks if any rank fails.
std::unique_ptr<DeviceGroup> CreateNcclGroup(Communicator& host, const gpu::Device& device);

}  // namespace dtrun::ops

#endif
