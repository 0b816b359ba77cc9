#include <dtrun/error.h>

#include "models/gpu/gpu_replica.h"

namespace dtrun::models {
namespace {

[[noreturn]] void NoGpu() {
  throw Error(
      ErrorCode::kUnavailable, "no GPU: dtrun was built on a machine without the CUDA toolkit");
}

}  // namespace

std::unique_ptr<GpuReplica> GpuReplica::Make(Sequential&, Communicator&, const GpuOptions&) {
  NoGpu();
}

uint64_t LargestGpuBatch(Sequential&, const GpuOptions&, std::span<const uint64_t>, uint64_t) {
  NoGpu();
}

}  // namespace dtrun::models
