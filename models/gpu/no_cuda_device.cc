#include <dtrun/error.h>

#include "models/gpu/cuda_device.h"

namespace dtrun::models {

std::unique_ptr<ComputeDevice> MakeCudaDevice(const CudaDeviceOptions&) {
  throw Error(
      ErrorCode::kUnavailable, "no GPU: dtrun was built on a machine without the CUDA toolkit");
}

}  // namespace dtrun::models
