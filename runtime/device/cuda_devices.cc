#include <map>
#include <mutex>

#include "gpu/device.h"
#include "runtime/device/devices.h"

namespace dtrun::runtime {

int CudaDeviceCount() { return gpu::DeviceCount(); }

const CudaDevice& DescribeCudaDevice(int index) {
  static std::mutex mutex;
  static auto* const known = new std::map<int, CudaDevice>;
  const std::lock_guard lock(mutex);
  const auto found = known->find(index);
  if (found != known->end()) return found->second;
  const gpu::Description described = gpu::Describe(index);
  return known->emplace(index, CudaDevice{described.name, described.bus_id, described.memory_bytes})
      .first->second;
}

}  // namespace dtrun::runtime
