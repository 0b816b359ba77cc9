/// A part of the C ABI that <dtrun/c.h> does not include: memory of GPUs that a program has
/// allocated by itself. Errors, ownership and threads are as there.
#ifndef DTRUN_C_DEVICE_REGISTRATION_H_
#define DTRUN_C_DEVICE_REGISTRATION_H_

#include <dtrun/c.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Collective: `bytes` at `data` on GPU `device`, in one allocation of the program's own
/// (cudaMalloc), which the other ranks' GPUs reach from now on without a copy, as they do memory of
/// dtrun_communicator_allocate_on_device, where the backend makes a difference and nothing stands
/// in the way (dtrun_memory_obstacle). Worth it for memory that collectives of more than 256 KiB
/// use again and again. `bytes` may differ between ranks, and be 0, with any `data`.
///
/// All ranks destroy `*memory`, which stays the program's, between the same two calls, before the
/// communicator, when nothing that uses it is under way on any rank; the program frees what lies
/// there, and destroys graphs with it, when all ranks have. DTRUN_INVALID_ARGUMENT, on all ranks:
/// what a rank brings is not of this GPU, or of more than one allocation. DTRUN_UNAVAILABLE as for
/// dtrun_communicator_allocate_on_device, and for more than 1022 pieces at once.
DTRUN_API dtrun_error* dtrun_communicator_register_on_device(
    dtrun_communicator* communicator, int32_t device, void* data, uint64_t bytes,
    dtrun_memory** memory);

/// Why the ranks do not reach registered memory, so that collectives take it as any other: the
/// first rank that has a reason, and its reason, the same on all ranks; "" when they do. Valid as
/// long as `memory`.
DTRUN_API const char* dtrun_memory_obstacle(const dtrun_memory* memory);

#ifdef __cplusplus
}
#endif

#endif
