#ifndef DTRUN_MODELS_GPU_DEVICE_TRANSFERS_H_
#define DTRUN_MODELS_GPU_DEVICE_TRANSFERS_H_

#include <dtrun/optimizer.h>

#include <cstdint>
#include <vector>

#include "gpu/memory.h"
#include "gpu/stream.h"
#include "models/gpu/plan.h"

namespace dtrun::models {

// What goes between the host and a device now and then. All of it waits.

/// Bytes, to `offset` of `to`.
void WriteBytes(
    const gpu::Stream& stream, const gpu::DeviceMemory& to, uint64_t offset, const void* from,
    uint64_t bytes);

/// The parameters' values, or what an optimizer keeps for each of them, in the order of the
/// parameters: from the host's order to the flat block of the plan, and back.
void WriteBlock(
    const gpu::Stream& stream, const NetworkPlan& plan, float* block,
    const std::vector<NamedBuffer>& values);
void ReadBlock(
    const gpu::Stream& stream, const NetworkPlan& plan, const float* block,
    const std::vector<NamedBuffer>& values);

}  // namespace dtrun::models

#endif
