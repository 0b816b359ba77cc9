/// The part of the C ABI about memory of GPUs. A part of <dtrun/c.h>, which includes it and says how
/// errors, ownership and threads are. A buffer with a `device` lies on that GPU, and what is done to
/// it is enqueued into its `stream` (a CUstream or cudaStream_t; NULL is the default stream).
#ifndef DTRUN_C_DEVICE_H_
#define DTRUN_C_DEVICE_H_

#include <dtrun/c.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Fills a buffer with zeros; on a GPU when its stream gets there.
DTRUN_API dtrun_error* dtrun_clear(dtrun_buffer buffer);

#ifdef __cplusplus
}
#endif

#endif
