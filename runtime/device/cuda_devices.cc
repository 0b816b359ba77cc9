#include "gpu/device.h"
#include "runtime/device/devices.h"

namespace dtrun::runtime {

int CudaDeviceCount() { return gpu::DeviceCount(); }

}  // namespace dtrun::runtime
