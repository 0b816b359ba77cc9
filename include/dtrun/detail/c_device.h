/// \file
/// The part of the C ABI about GPU memory. <dtrun/c.h> includes this file, and its rules for
/// errors, ownership and threads hold here. A buffer with a `device` lies on that GPU. Operations
/// on the buffer are enqueued into its `stream` (a CUstream or cudaStream_t; NULL is the default
/// stream).
#ifndef DTRUN_DETAIL_C_DEVICE_H_
#define DTRUN_DETAIL_C_DEVICE_H_

#include <dtrun/c.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Allocates zeroed memory on GPU `device`, aligned to 256 bytes. Collective. If the backend can,
/// the other ranks' GPUs reach the memory without a copy. `bytes` may differ between ranks. A rank
/// uses one GPU in each communicator. DTRUN_UNAVAILABLE, on all ranks, with the reason: the GPU
/// does not exist, no backend reaches the GPUs of all ranks, or the GPU has not enough memory.
/// Destroy the memory before the communicator, when no operation that uses the memory is under way
/// on any rank.
DTRUN_API dtrun_error* dtrun_communicator_allocate_on_device(
    dtrun_communicator* communicator, int32_t device, uint64_t bytes, dtrun_memory** memory);

/// The backend that moves data between GPU `device` and the other ranks' GPUs: "cuda_ipc", "nccl",
/// "hierarchical" or "host_staged". The first call is collective. Valid as long as the
/// communicator. Errors as in dtrun_communicator_allocate_on_device.
DTRUN_API dtrun_error* dtrun_communicator_device_backend(
    dtrun_communicator* communicator, int32_t device, const char** backend);

/// Returns the error of any enqueued collective on a GPU, as far as this rank knows. After the
/// caller has waited for its streams, this rank knows all errors. The function does not wait.
DTRUN_API dtrun_error* dtrun_communicator_check_device(dtrun_communicator* communicator);

/// Describes GPU `device`, a number from 0 to dtrun_cuda_device_count - 1. `*name` is for example
/// "NVIDIA H200". `*bus_id` is its place on the PCI bus ("0000:1B:00.0"), the same in all processes
/// of the host. `*memory_bytes` is its memory, used or free. The call allocates nothing on the GPU.
/// The strings stay valid. Any thread. DTRUN_UNAVAILABLE, with the reason: there are no GPUs.
DTRUN_API dtrun_error* dtrun_describe_cuda_device(
    int32_t device, const char** name, const char** bus_id, uint64_t* memory_bytes);

/// Fills a buffer with zeros. On a GPU, the fill is enqueued into the buffer's stream.
DTRUN_API dtrun_error* dtrun_clear(dtrun_buffer buffer);

#ifdef __cplusplus
}
#endif

#endif
