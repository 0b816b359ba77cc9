/// \file
/// A part of the C ABI that <dtrun/c.h> does not include: the registration of GPU memory that a
/// program has allocated itself. Registration has no effect since dtrun 0.2: collectives treat all
/// memory of a GPU alike. The functions stay for programs that call them. The rules of <dtrun/c.h>
/// for errors, ownership and threads hold here.
#ifndef DTRUN_C_DEVICE_REGISTRATION_H_
#define DTRUN_C_DEVICE_REGISTRATION_H_

#include <dtrun/c.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Makes a handle of the `bytes` at `data` on GPU `device`. Collective. The memory stays the
/// program's. `bytes` may differ between ranks, and may be 0, with any `data`. Destroy `*memory`
/// before the communicator. Errors as in dtrun_communicator_allocate_on_device.
DTRUN_API dtrun_error* dtrun_communicator_register_on_device(
    dtrun_communicator* communicator, int32_t device, void* data, uint64_t bytes,
    dtrun_memory** memory);

/// Always "": nothing keeps collectives from using the memory.
DTRUN_API const char* dtrun_memory_obstacle(const dtrun_memory* memory);

#ifdef __cplusplus
}
#endif

#endif
