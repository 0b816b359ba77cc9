#ifndef DTRUN_OPS_CUDA_HOST_STAGED_GROUP_H_
#define DTRUN_OPS_CUDA_HOST_STAGED_GROUP_H_

#include <memory>
#include <string>

#include "gpu/device.h"
#include "ops/device_group.h"

namespace dtrun::ops::cuda {

/// The backend host_staged, for ranks that no other one serves: data goes to pinned host memory,
/// the communicator of the host does what was called, and the result goes back to the GPU.
///
/// Unlike other backends its calls wait: for the stream, and for the other ranks (sends do not). So
/// they cannot be captured into a graph: kUnavailable. Errors are those of the host's communicator,
/// thrown by the call itself.

/// "": any ranks can have one.
std::string WhyNotHostStaged(Communicator& host, const gpu::Device& device);

/// `host` outlives the group, but for its destructor, which waits for sends.
std::unique_ptr<DeviceGroup> CreateHostStagedGroup(Communicator& host, const gpu::Device& device);

}  // namespace dtrun::ops::cuda

#endif
