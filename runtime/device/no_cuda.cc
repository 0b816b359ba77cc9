#include "dtrun/error.h"
#include "runtime/device/devices.h"

namespace dtrun::runtime {

int CudaDeviceCount() {
  throw Error(
      ErrorCode::kUnavailable, "no GPU: dtrun was built on a machine without the CUDA toolkit");
}

}  // namespace dtrun::runtime
