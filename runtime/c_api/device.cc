#include <cstring>

#include "dtrun/c_device.h"
#include "dtrun/types.h"
#include "ops/communicator.h"
#include "runtime/c_api/handles.h"
#include "runtime/device/device_gradients.h"
#include "runtime/device/devices.h"

using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::Use;

dtrun_error* dtrun_communicator_allocate_on_device(
    dtrun_communicator* communicator, int32_t device, uint64_t bytes, dtrun_memory** memory) {
  return Guard([&] {
    CheckNotNull(memory, "memory");
    dtrun_communicator& c = Use(communicator, "communicator");
    *memory = new dtrun_memory{c.owner, c.communicator->AllocateOnDevice(device, bytes)};
  });
}

dtrun_error* dtrun_communicator_device_backend(
    dtrun_communicator* communicator, int32_t device, const char** backend) {
  return Guard([&] {
    CheckNotNull(backend, "backend");
    *backend = Use(communicator, "communicator").communicator->device_group(device).backend();
  });
}

dtrun_error* dtrun_communicator_check_device(dtrun_communicator* communicator) {
  return Guard([&] { Use(communicator, "communicator").communicator->CheckDevice(); });
}

dtrun_error* dtrun_describe_cuda_device(
    int32_t device, const char** name, const char** bus_id, uint64_t* memory_bytes) {
  return Guard([&] {
    CheckNotNull(name, "name");
    CheckNotNull(bus_id, "bus_id");
    CheckNotNull(memory_bytes, "memory_bytes");
    const dtrun::runtime::CudaDevice& found = dtrun::runtime::DescribeCudaDevice(device);
    *name = found.name.c_str();
    *bus_id = found.bus_id.c_str();
    *memory_bytes = found.memory_bytes;
  });
}

dtrun_error* dtrun_clear(dtrun_buffer buffer) {
  return Guard([&] {
    const dtrun::Buffer cleared = dtrun::detail::FromC(buffer);
    if (cleared.count == 0) return;
    CheckNotNull(buffer.data, "data of the buffer");
    if (cleared.device >= 0)
      dtrun::runtime::ClearOnDevice(cleared);
    else
      std::memset(cleared.data, 0, cleared.bytes());
  });
}
