#include <dtrun/error.h>

#include "models/gpu/cuda_device.h"

namespace dtrun::models {

namespace {

[[noreturn]] void ThrowNoGpu() {
  throw Error(
      ErrorCode::kUnavailable,
      "no GPU: dtrun was built without CUDA (scripts/install builds with it)");
}

}  // namespace

std::unique_ptr<ComputeDevice> MakeCudaDevice(const CudaDeviceOptions&) { ThrowNoGpu(); }

uint64_t LargestGpuBatch(
    int, int, uint64_t, const std::function<std::shared_ptr<void>(uint64_t)>&) {
  ThrowNoGpu();
}

}  // namespace dtrun::models
