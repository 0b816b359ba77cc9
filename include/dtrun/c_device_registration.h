/// \file
/// A part of the C ABI that <dtrun/c.h> does not include: GPU memory that a program has allocated
/// itself. The rules of <dtrun/c.h> for errors, ownership and threads hold here.
#ifndef DTRUN_C_DEVICE_REGISTRATION_H_
#define DTRUN_C_DEVICE_REGISTRATION_H_

#include <dtrun/c.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Registers `bytes` at `data` on GPU `device`, in one allocation of the program (cudaMalloc).
/// Collective. From now on the other ranks' GPUs reach the memory without a copy, as they reach
/// memory of dtrun_communicator_allocate_on_device. Some backends make no difference, and
/// dtrun_memory_obstacle names other reasons. Registration pays off for memory that collectives of
/// more than 256 KiB use repeatedly. `bytes` may differ between ranks, and may be 0, with any
/// `data`.
///
/// All ranks destroy `*memory` between the same two calls, before the communicator, when no
/// operation that uses the memory is under way on any rank. The memory stays the program's. When
/// all ranks have destroyed `*memory`, the program may free the memory and destroy graphs that use
/// it.
///
/// DTRUN_INVALID_ARGUMENT, on all ranks: a rank's memory is not on this GPU, or not in one
/// allocation. DTRUN_UNAVAILABLE: as for dtrun_communicator_allocate_on_device, or more than 1022
/// registrations at once.
DTRUN_API dtrun_error* dtrun_communicator_register_on_device(
    dtrun_communicator* communicator, int32_t device, void* data, uint64_t bytes,
    dtrun_memory** memory);

/// The reason why collectives treat the memory as unregistered: the reason of the first rank that
/// has one, the same on all ranks. "" if there is none. Valid as long as `memory`.
DTRUN_API const char* dtrun_memory_obstacle(const dtrun_memory* memory);

#ifdef __cplusplus
}
#endif

#endif
