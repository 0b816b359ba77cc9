#include "dtrun/error.h"
#include "runtime/device/block_device.h"

namespace dtrun::runtime {
namespace {

[[noreturn]] void NoGpu() {
  throw Error(
      ErrorCode::kUnavailable,
      "no GPU: dtrun was built without CUDA (scripts/install builds with it)");
}

}  // namespace

int CudaDeviceCount() { NoGpu(); }

const CudaDevice& DescribeCudaDevice(int) { NoGpu(); }

std::unique_ptr<DeviceGradients> MakeDeviceGradients(int, void*) { NoGpu(); }

BlockDevice& CudaBlockDevice(int) { NoGpu(); }

}  // namespace dtrun::runtime
