#include <utility>

#include "dtrun/c_device_registration.h"
#include "ops/communicator.h"
#include "runtime/c_api/handles.h"

using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::Use;

dtrun_error* dtrun_communicator_register_on_device(
    dtrun_communicator* communicator, int32_t device, void* data, uint64_t bytes,
    dtrun_memory** memory) {
  return Guard([&] {
    CheckNotNull(memory, "memory");
    dtrun_communicator& c = Use(communicator, "communicator");
    auto made = c.communicator->device_group(device).Register(data, bytes);
    *memory = new dtrun_memory{c.owner, std::move(made.memory), std::move(made.obstacle)};
  });
}

const char* dtrun_memory_obstacle(const dtrun_memory* memory) { return memory->obstacle.c_str(); }
