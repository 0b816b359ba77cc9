/// The stable C ABI of libdtrun.so. Everything the C++ headers do, they do through these functions.
///
/// Errors: a function that can fail returns NULL for success, or a `dtrun_error` that the caller
/// destroys. Ownership: what a function hands out through its last parameter belongs to the caller,
/// who calls its `_destroy`. Destroying NULL does nothing, and no `_destroy` ever communicates or
/// blocks. A context outlives everything made from it. Threads: one thread at a time per
/// communicator and what was made from it; different communicators are independent.
#ifndef DTRUN_C_H_
#define DTRUN_C_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define DTRUN_API __attribute__((visibility("default")))
#else
#define DTRUN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dtrun_error dtrun_error;
typedef struct dtrun_context dtrun_context;
typedef struct dtrun_communicator dtrun_communicator;
typedef struct dtrun_memory dtrun_memory;
typedef struct dtrun_work dtrun_work;
typedef struct dtrun_reducer dtrun_reducer;

/// What went wrong, for a program to act on. The message says who, what and where, for a person.
enum {
  DTRUN_INVALID_ARGUMENT = 1,  ///< the caller's mistake, found before anything was sent
  DTRUN_MISMATCH = 2,          ///< ranks called different operations, or with different arguments
  DTRUN_PEER_LOST = 3,         ///< a rank died or left
  DTRUN_TIMEOUT = 4,           ///< a rank did not arrive in time
  DTRUN_UNAVAILABLE =
      5,            ///< what was asked for is not built in, not installed or not possible here
  DTRUN_SYSTEM = 6  ///< a call of the operating system or of a library failed
};

enum {
  DTRUN_U8 = 0,
  DTRUN_I8 = 1,
  DTRUN_U16 = 2,
  DTRUN_I16 = 3,
  DTRUN_U32 = 4,
  DTRUN_I32 = 5,
  DTRUN_U64 = 6,
  DTRUN_I64 = 7,
  DTRUN_F16 = 8,
  DTRUN_BF16 = 9,
  DTRUN_F32 = 10,
  DTRUN_F64 = 11,
  DTRUN_BOOL = 12
};

enum { DTRUN_SUM = 0, DTRUN_AVERAGE = 1, DTRUN_MIN = 2, DTRUN_MAX = 3, DTRUN_PRODUCT = 4 };

/// A typed view of memory that someone else owns.
typedef struct dtrun_buffer {
  void* data;
  uint64_t count;  ///< elements
  int32_t dtype;   ///< DTRUN_U8 ... DTRUN_BOOL
  int32_t device;  ///< -1: host memory
  void* stream;    ///< the stream that makes the data, NULL on the host
} dtrun_buffer;

/// Where this process stands. Hosts come in the order of the host list; cross_rank counts hosts
/// among the ranks of equal local_rank.
typedef struct dtrun_topology {
  int32_t rank, size;
  int32_t local_rank, local_size;
  int32_t cross_rank, cross_size;
} dtrun_topology;

typedef struct dtrun_option {
  const char* name;  ///< as in docs/options.md, for example "bucket_bytes"
  const char* value;
} dtrun_option;

DTRUN_API int32_t dtrun_error_code(const dtrun_error* error);
DTRUN_API const char* dtrun_error_message(const dtrun_error* error);
DTRUN_API void dtrun_error_destroy(dtrun_error* error);

/// "0.1.0"
DTRUN_API const char* dtrun_version(void);

/// Makes this process a rank: collective over all processes of the job. Started by nobody, it is a
/// world of one. An option given here wins over the environment (DTRUN_BUCKET_BYTES and so on).
DTRUN_API dtrun_error* dtrun_init(
    const dtrun_option* options, size_t option_count, dtrun_context** context);
/// Collective. Afterwards only `dtrun_context_destroy` may be called on what came from this
/// context.
DTRUN_API dtrun_error* dtrun_shutdown(dtrun_context* context);
/// Without a `dtrun_shutdown` before it, the job ends with an error that names this rank.
DTRUN_API void dtrun_context_destroy(dtrun_context* context);

DTRUN_API dtrun_topology dtrun_context_topology(const dtrun_context* context);
DTRUN_API int32_t dtrun_context_host_count(const dtrun_context* context);
/// NULL when `host` is out of range. Valid as long as the context.
DTRUN_API const char* dtrun_context_host_name(const dtrun_context* context, int32_t host);
/// Ranks on that host.
DTRUN_API int32_t dtrun_context_host_slots(const dtrun_context* context, int32_t host);
/// Compute threads this rank should use, from the CPUs that are its own.
DTRUN_API int32_t dtrun_context_threads(const dtrun_context* context);
/// Width of the terminal that the user of the launcher looks at; 0 when output goes to a file or a
/// pipe.
DTRUN_API int32_t dtrun_context_terminal_columns(const dtrun_context* context);
/// All ranks. Belongs to the context.
DTRUN_API dtrun_communicator* dtrun_context_world(dtrun_context* context);
/// GPUs that this process can use. DTRUN_UNAVAILABLE, with the reason, where there are none.
DTRUN_API dtrun_error* dtrun_cuda_device_count(int32_t* count);

DTRUN_API int32_t dtrun_communicator_rank(const dtrun_communicator* communicator);
DTRUN_API int32_t dtrun_communicator_size(const dtrun_communicator* communicator);
/// "self", "shm" or "mpi". Valid as long as the communicator.
DTRUN_API const char* dtrun_communicator_backend(const dtrun_communicator* communicator);
/// Collective: the same ranks, with operations of its own that never interleave with the
/// original's.
DTRUN_API dtrun_error* dtrun_communicator_duplicate(
    dtrun_communicator* communicator, dtrun_communicator** duplicate);
DTRUN_API void dtrun_communicator_destroy(dtrun_communicator* communicator);

/// Collective: zeroed memory which collectives of this communicator reduce in place, without a
/// copy, where the backend can (shm: every rank of the host maps it). Ranks may ask for different
/// sizes. Aligned to 4096 bytes.
DTRUN_API dtrun_error* dtrun_communicator_allocate(
    dtrun_communicator* communicator, uint64_t bytes, dtrun_memory** memory);
DTRUN_API void* dtrun_memory_data(const dtrun_memory* memory);
DTRUN_API uint64_t dtrun_memory_bytes(const dtrun_memory* memory);
DTRUN_API void dtrun_memory_destroy(dtrun_memory* memory);

/// The started operations below own the buffers they were given until the work is done. All ranks
/// start the same operations in the same order. Replaces `buffer` on every rank by the element-wise
/// reduction over all ranks; the same bits everywhere.
DTRUN_API dtrun_error* dtrun_start_all_reduce(
    dtrun_communicator* communicator, dtrun_buffer buffer, int32_t reduce_op, dtrun_work** work);
/// Replaces `buffer` on every rank by the one of rank `root`.
DTRUN_API dtrun_error* dtrun_start_broadcast(
    dtrun_communicator* communicator, dtrun_buffer buffer, int32_t root, dtrun_work** work);
/// `output` (input.count * size elements) becomes the inputs of all ranks in rank order. The two do
/// not overlap.
DTRUN_API dtrun_error* dtrun_start_all_gather(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, dtrun_work** work);
/// Done when every rank has started it.
DTRUN_API dtrun_error* dtrun_start_barrier(dtrun_communicator* communicator, dtrun_work** work);

/// Lets the operation progress without blocking; `*done` becomes 1 once it has finished.
DTRUN_API dtrun_error* dtrun_work_test(dtrun_work* work, int32_t* done);
/// Blocks, driving progress, until the operation has finished or failed.
DTRUN_API dtrun_error* dtrun_work_wait(dtrun_work* work);
/// An unfinished operation goes on without its handle and still owns its buffer.
DTRUN_API void dtrun_work_destroy(dtrun_work* work);

/// One gradient of a reducer. With `buffer.data` NULL the reducer gives it a place in its own
/// block, which is reduced without a copy; otherwise it is packed when marked and unpacked by the
/// wait.
typedef struct dtrun_gradient {
  const char* name;
  dtrun_buffer buffer;
} dtrun_gradient;

/// Collective: all ranks pass the same names, counts and types in the same order; a difference is
/// DTRUN_MISMATCH and names the first gradient that differs. `bucket_bytes` 0 means the option of
/// that name.
DTRUN_API dtrun_error* dtrun_reducer_create(
    dtrun_communicator* communicator, const dtrun_gradient* gradients, size_t gradient_count,
    int32_t reduce_op, uint64_t bucket_bytes, dtrun_reducer** reducer);
/// Where gradient `index` has to be written, before it is marked.
DTRUN_API dtrun_error* dtrun_reducer_gradient(
    const dtrun_reducer* reducer, size_t index, dtrun_buffer* buffer);
/// The gradient is complete: its bucket starts once all of its gradients, and the buckets before
/// it, are. Marking twice before a wait is DTRUN_INVALID_ARGUMENT.
DTRUN_API dtrun_error* dtrun_reducer_mark_ready(dtrun_reducer* reducer, size_t index);
/// Reduces what has not been marked as well, and returns when every gradient holds the result on
/// this rank.
DTRUN_API dtrun_error* dtrun_reducer_wait(dtrun_reducer* reducer);
DTRUN_API void dtrun_reducer_destroy(dtrun_reducer* reducer);

#ifdef __cplusplus
}
#endif

#endif
