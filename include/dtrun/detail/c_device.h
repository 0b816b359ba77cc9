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

/// Allocates zeroed memory on GPU `device`, aligned to 256 bytes. Collective. `bytes` may differ
/// between ranks. A rank uses one GPU in each communicator. DTRUN_UNAVAILABLE, on all ranks, with
/// the reason: the GPU does not exist, no backend reaches the GPUs of all ranks, or the GPU has not
/// enough memory. Destroy the memory before the communicator, when no operation that uses the
/// memory is under way on any rank.
DTRUN_API dtrun_error* dtrun_communicator_allocate_on_device(
    dtrun_communicator* communicator, int32_t device, uint64_t bytes, dtrun_memory** memory);

/// Makes a handle of the `bytes` at `data` on GPU `device`, which the program has allocated itself.
/// Registration has no effect since dtrun 0.2: collectives treat all memory of a GPU alike. The
/// function stays for programs that call it. Collective. The memory stays the program's. `bytes`
/// may differ between ranks, and may be 0, with any `data`. Destroy `*memory` before the
/// communicator. Errors as in dtrun_communicator_allocate_on_device.
DTRUN_API dtrun_error* dtrun_communicator_register_on_device(
    dtrun_communicator* communicator, int32_t device, void* data, uint64_t bytes,
    dtrun_memory** memory);

/// Always "": nothing keeps collectives from using the memory.
DTRUN_API const char* dtrun_memory_obstacle(const dtrun_memory* memory);

/// The backend that moves data between GPU `device` and the other ranks' GPUs: "cuda_ipc", "nccl",
/// "hierarchical" or "host_staged". The first call is collective. Valid as long as the
/// communicator. Errors as in dtrun_communicator_allocate_on_device.
DTRUN_API dtrun_error* dtrun_communicator_device_backend(
    dtrun_communicator* communicator, int32_t device, const char** backend);

/// Sets the backends to consider for GPU memory, instead of those of the job's option: "auto", a
/// name, or names with commas between them. The first that works is taken, in dtrun's order. All
/// ranks pass the same names, before the first use of GPU memory with this communicator. Also for
/// communicators that are made from it later.
DTRUN_API dtrun_error* dtrun_communicator_use_device_backends(
    dtrun_communicator* communicator, const char* names);

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

/// Copies a buffer of the host or a GPU to another buffer with the same number of bytes. On one
/// GPU, the copy is enqueued into the stream of `to`. Between the host and a GPU, the copy follows
/// the work in the GPU's stream and is complete when the call returns.
DTRUN_API dtrun_error* dtrun_copy(dtrun_buffer from, dtrun_buffer to);

/// Multiplies a buffer of f32 or f64 by a factor. On a GPU, the work is enqueued into the buffer's
/// stream.
DTRUN_API dtrun_error* dtrun_multiply(dtrun_buffer buffer, double factor);

/// Computes the sums of squares of buffers of f32 or f64, in f64 and in a fixed order. The bits do
/// not depend on the place of a buffer. On a GPU, the call waits for the buffer's stream.
DTRUN_API dtrun_error* dtrun_squared_norms(
    const dtrun_buffer* buffers, size_t count, double* norms);

/// Sets `*index` to the first of the buffers with an infinite or NaN element, or to `count` if
/// there is none. On a GPU, the call waits for the buffer's stream.
DTRUN_API dtrun_error* dtrun_find_non_finite(
    const dtrun_buffer* buffers, size_t count, size_t* index);

#ifdef __cplusplus
}
#endif

#endif
