#include "gpu/gpu_device.h"

#include <map>
#include <memory>
#include <mutex>

#include "dtrun/error.h"
#include "gpu/driver.h"

namespace dtrun::gpu {

int DeviceCount() {
  int count = 0;
  Check(Driver::Get().cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

Description Describe(int index) {
  const int count = DeviceCount();
  if (index < 0 || index >= count)
    throw Error(
        ErrorCode::kInvalidArgument, "there is no GPU " + std::to_string(index) +
                                         "; expected a number from 0 to " +
                                         std::to_string(count - 1));
  const Driver& driver = Driver::Get();
  Description found;
  Check(driver.cuDeviceGet(&found.handle, index), "cuDeviceGet");
  char text[256] = "";
  Check(driver.cuDeviceGetName(text, sizeof text, found.handle), "cuDeviceGetName");
  found.name = text;
  Check(driver.cuDeviceGetPCIBusId(text, sizeof text, found.handle), "cuDeviceGetPCIBusId");
  found.bus_id = text;
  size_t bytes = 0;
  Check(driver.cuDeviceTotalMem(&bytes, found.handle), "cuDeviceTotalMem");
  found.memory_bytes = bytes;
  return found;
}

const Device& Device::Get(int index) {
  // Never destroyed: other static objects may give memory and streams back later.
  static auto* const mutex = new std::mutex;
  static auto* const devices = new std::map<int, std::unique_ptr<Device>>;
  std::lock_guard lock(*mutex);
  std::unique_ptr<Device>& device = (*devices)[index];
  if (device == nullptr) device.reset(new Device(index));
  return *device;
}

Device::Device(int index) : index_(index), description_(Describe(index)) {
  multiprocessors_ = Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  Check(Driver::Get().cuDevicePrimaryCtxRetain(&context_, handle()), "cuDevicePrimaryCtxRetain");
}

int Device::Attribute(CUdevice_attribute attribute) const {
  int value = 0;
  Check(Driver::Get().cuDeviceGetAttribute(&value, attribute, handle()), "cuDeviceGetAttribute");
  return value;
}

Device::MemoryInfo Device::Memory() const {
  const DeviceScope scope(*this);
  size_t free = 0, total = 0;
  Check(Driver::Get().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return {free, total};
}

void Device::Synchronize() const {
  const DeviceScope scope(*this);
  Check(Driver::Get().cuCtxSynchronize(), "cuCtxSynchronize");
}

DeviceScope::DeviceScope(const Device& device) {
  Check(Driver::Get().cuCtxPushCurrent(device.context()), "cuCtxPushCurrent");
}

DeviceScope::~DeviceScope() {
  CUcontext popped = nullptr;
  Driver::Get().cuCtxPopCurrent(&popped);
}

}  // namespace dtrun::gpu
