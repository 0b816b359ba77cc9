/// The part of the C ABI about memory of GPUs. A part of <dtrun/c.h>, which includes it and says
/// how errors, ownership and threads are. A buffer with a `device` lies on that GPU, and what is
/// done to it is enqueued into its `stream` (a CUstream or cudaStream_t; NULL is the default
/// stream).
#ifndef DTRUN_DETAIL_C_DEVICE_H_
#define DTRUN_DETAIL_C_DEVICE_H_

#include <dtrun/c.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Collective: zeroed memory on GPU `device`, aligned to 256 bytes, which the other ranks' GPUs
/// reach without a copy where the backend can. `bytes` may differ between ranks. A rank uses one
/// GPU in each communicator. DTRUN_UNAVAILABLE, on all ranks, with the reason: there is no such
/// GPU, no backend that reaches the GPUs of all ranks, or no room. Destroyed before the
/// communicator, when nothing that uses it is under way on any rank.
DTRUN_API dtrun_error* dtrun_communicator_allocate_on_device(
    dtrun_communicator* communicator, int32_t device, uint64_t bytes, dtrun_memory** memory);

/// Collective until it has been asked once: what moves the data of GPU `device` and of the other
/// ranks', "cuda_ipc", "nccl", "hierarchical" or "host_staged". Valid as long as the communicator.
/// Errors as above.
DTRUN_API dtrun_error* dtrun_communicator_device_backend(
    dtrun_communicator* communicator, int32_t device, const char** backend);

/// The error of a collective on a GPU that has been enqueued, as far as it is known: of all of them
/// once the caller has waited for their streams. Waits for nothing.
DTRUN_API dtrun_error* dtrun_communicator_check_device(dtrun_communicator* communicator);

/// GPU `device`, from 0 below what dtrun_cuda_device_count says: its name ("NVIDIA H200"), its
/// place on the PCI bus ("0000:1B:00.0"), which is the same in all processes of the host, and its
/// memory in bytes, used or not. Takes nothing of it. The strings stay valid. Any thread.
/// DTRUN_UNAVAILABLE, with the reason, where there are no GPUs.
DTRUN_API dtrun_error* dtrun_describe_cuda_device(
    int32_t device, const char** name, const char** bus_id, uint64_t* memory_bytes);

/// Fills a buffer with zeros; on a GPU when its stream gets there.
DTRUN_API dtrun_error* dtrun_clear(dtrun_buffer buffer);

#ifdef __cplusplus
}
#endif

#endif
