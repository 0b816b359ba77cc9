#ifndef DTRUN_MODELS_GPU_GPU_ROOM_H_
#define DTRUN_MODELS_GPU_GPU_ROOM_H_

#include <cstdint>

#include "gpu/device.h"
#include "models/gpu/gpu_replica.h"
#include "models/gpu/plan.h"

namespace dtrun::models {

/// Throws Error kUnavailable where the network of these rows does not fit into what is free, with
/// the bytes needed and free.
void CheckRoom(const gpu::Device& device, const NetworkPlan& plan, const GpuOptions& options);

/// Whether a data set of so many examples is to lie in the device's memory as a whole: it does if
/// it fits into what is left to this rank, and `options` leave it open. `later`: bytes that are
/// still needed besides.
bool IsResident(
    const gpu::Device& device, const GpuOptions& options, uint64_t count, uint64_t pixels,
    uint64_t later);

}  // namespace dtrun::models

#endif
