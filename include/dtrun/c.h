/// \file
/// The stable C ABI of libdtrun.so. The C++ headers are built on these functions alone.
///
///  - Errors: a function that can fail returns NULL for success, or a `dtrun_error` that the caller
///    destroys.
///  - Ownership: the caller owns each object that a function returns through its last parameter,
///    and frees it with the matching `_destroy`. A `_destroy` of NULL does nothing. No `_destroy`
///    communicates. None blocks, except that of a checkpoint manager, which waits for the disk. A
///    context outlives all objects made from it.
///  - Threads: one thread at a time uses a communicator and the objects made from it. Different
///    communicators are independent.
///  - Processes: in a child that was forked after dtrun_init, the handles of the parent are
///    unusable. Functions that can fail return DTRUN_INVALID_ARGUMENT for such a handle, except
///    dtrun_shutdown, which does nothing. A `_destroy` leaves the handle alone.
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

/// The error of a function that failed: a code for programs and a message for people.
typedef struct dtrun_error dtrun_error;
/// This process as a rank of its job. dtrun_init makes it.
typedef struct dtrun_context dtrun_context;
/// A fixed set of ranks that exchange data.
typedef struct dtrun_communicator dtrun_communicator;
/// Replicas of one process, each a thread with a rank of its own.
typedef struct dtrun_replicas dtrun_replicas;
/// Memory that dtrun allocated, or GPU memory of the program that dtrun registered.
typedef struct dtrun_memory dtrun_memory;
/// A started operation.
typedef struct dtrun_work dtrun_work;
/// A reducer: reduces the gradients of a model over all ranks, in buckets.
typedef struct dtrun_reducer dtrun_reducer;
/// The sharded parameters of a model. Each rank updates one share of them.
typedef struct dtrun_shards dtrun_shards;
/// A checkpoint manager: saves and loads the checkpoints of a job in one folder.
typedef struct dtrun_checkpoint_manager dtrun_checkpoint_manager;
/// A list of checkpoints. It owns their descriptions.
typedef struct dtrun_checkpoint_list dtrun_checkpoint_list;
/// The content of a safetensors file, in memory.
typedef struct dtrun_tensor_file dtrun_tensor_file;

/// Error codes, for programs. The message of an error is for people: it names the rank, the cause
/// and the place.
enum {
  DTRUN_INVALID_ARGUMENT = 1,  ///< the caller's mistake, found before anything was sent
  DTRUN_MISMATCH = 2,          ///< ranks called different operations, or with different arguments
  DTRUN_PEER_LOST = 3,         ///< a rank died or left
  DTRUN_TIMEOUT = 4,           ///< a rank did not arrive in time
  DTRUN_UNAVAILABLE = 5,       ///< not built in, not installed or not possible here
  DTRUN_SYSTEM = 6,            ///< a call of the operating system or of a library failed
  // More precise than DTRUN_INVALID_ARGUMENT:
  DTRUN_DUPLICATE_NAME = 7,  ///< a tensor of this name is under way, or twice in a group
  DTRUN_DUPLICATE_SET = 8,   ///< a process set of these ranks exists
  DTRUN_NOT_IN_SET = 9       ///< this rank is not in the process set
};

/// The type of an element: an unsigned integer (U), a signed integer (I), a float (F) or a bool,
/// with its width in bits. BF16 is bfloat16. A bool has one byte.
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

/// The operation of a reduction, element by element over the ranks.
enum {
  DTRUN_SUM = 0,      ///< the sum
  DTRUN_AVERAGE = 1,  ///< the sum, divided by the number of ranks
  DTRUN_MIN = 2,      ///< the smallest element
  DTRUN_MAX = 3,      ///< the largest element
  DTRUN_PRODUCT = 4,  ///< the product
  DTRUN_ADASUM = 5    ///< only all_reduce of named tensors: see dtrun/detail/c_named_queue.h
};

/// A typed view of memory. It does not own the memory.
typedef struct dtrun_buffer {
  void* data;      ///< the first element; may be NULL if `count` is 0
  uint64_t count;  ///< elements
  int32_t dtype;   ///< DTRUN_U8 ... DTRUN_BOOL
  int32_t device;  ///< -1: host memory
  void* stream;    ///< the stream that produces the data; NULL for host memory
} dtrun_buffer;

/// The factors of a reduction: every input is multiplied by `before`, the result by `after`. Both
/// factors are finite. Floats are multiplied in the type that they accumulate in. Integers are
/// multiplied in f64, truncated toward zero and clamped to their type. Bools need factors of 1.
typedef struct dtrun_scale {
  double before,  ///< factor of every input
      after;      ///< factor of the result
} dtrun_scale;

/// A buffer in host memory. It sets `device` to -1: in a buffer that is filled with zeros, `device`
/// 0 is a GPU.
static inline dtrun_buffer dtrun_host_buffer(void* data, uint64_t count, int32_t dtype) {
  dtrun_buffer buffer;
  buffer.data = data;
  buffer.count = count;
  buffer.dtype = dtype;
  buffer.device = -1;
  buffer.stream = NULL;
  return buffer;
}

/// The place of this process among the ranks of the job. Hosts are in the order of the host list.
typedef struct dtrun_topology {
  int32_t rank,        ///< number of this process, from 0
      size;            ///< number of ranks in the job
  int32_t local_rank,  ///< number of lower ranks on this host
      local_size;      ///< number of ranks on this host
  int32_t cross_rank,  ///< number of lower hosts that have this local_rank
      cross_size;      ///< number of hosts that have this local_rank
} dtrun_topology;

/// An option of a job and its value, as text. dtrun_init copies both.
typedef struct dtrun_option {
  const char* name;   ///< as in docs/reference/options.md, for example "bucket_bytes"
  const char* value;  ///< for example "1048576"
} dtrun_option;

/// The code of an error: DTRUN_INVALID_ARGUMENT ... DTRUN_NOT_IN_SET. 0 for NULL.
DTRUN_API int32_t dtrun_error_code(const dtrun_error* error);
/// The message of an error. "" for NULL. Valid as long as the error.
DTRUN_API const char* dtrun_error_message(const dtrun_error* error);
/// Writes the ranks that were lost or waited for in vain, with the numbers of the launch, as
/// messages name them. At most `*count` ranks are written. Then `*count` becomes their number: 0 if
/// the error is about no rank, if it is not known which, and for NULL. `ranks` may be NULL.
DTRUN_API void dtrun_error_ranks(const dtrun_error* error, int32_t* ranks, size_t* count);
/// The kind of the operation that failed, for example "all_reduce". "" if the error is about none,
/// and for NULL. Valid as long as the error.
DTRUN_API const char* dtrun_error_operation(const dtrun_error* error);
/// Frees an error.
DTRUN_API void dtrun_error_destroy(dtrun_error* error);

/// The version of libdtrun.so, for example "0.1.0".
DTRUN_API const char* dtrun_version(void);

/// Checks that the environment variable TF_CONFIG describes this job: its number of tasks, the
/// index of this task, and the tasks that share a host. If TF_CONFIG is not set, the check
/// succeeds. DTRUN_INVALID_ARGUMENT names the difference.
DTRUN_API dtrun_error* dtrun_check_tf_config(const dtrun_context* context);

/// Makes this process a rank of its job. Collective over all processes of the job. A process that
/// was started alone is a job of one rank. Options given here win over the environment (for
/// example, DTRUN_BUCKET_BYTES).
DTRUN_API dtrun_error* dtrun_init(
    const dtrun_option* options, size_t option_count, dtrun_context** context);
/// Makes this process a rank of an MPI communicator that the caller owns, otherwise as dtrun_init.
/// <dtrun/mpi.h> passes the first three arguments: the address of the MPI_Comm, its size in bytes,
/// and the text of MPI_Get_library_version.
DTRUN_API dtrun_error* dtrun_init_mpi(
    const void* mpi_comm, size_t mpi_comm_bytes, const char* mpi_library,
    const dtrun_option* options, size_t option_count, dtrun_context** context);
/// Ends the job on this rank. Collective. Afterwards, the objects of this context and the context
/// itself may only be destroyed. All ranks may call dtrun_init again. If dtrun_init has initialised
/// MPI, MPI is finalised when the process exits or returns from main.
DTRUN_API dtrun_error* dtrun_shutdown(dtrun_context* context);
/// Frees a context. If `dtrun_shutdown` was not called before, the job ends with an error that
/// names this rank.
DTRUN_API void dtrun_context_destroy(dtrun_context* context);

/// One line for people and logs: version, rank, backend, threads, options, and whether operations
/// overlap with the caller's own work (and if not, why). Valid as long as the context.
DTRUN_API const char* dtrun_context_description(const dtrun_context* context);
/// The value in use of an option. NULL for an unknown name. Valid as long as the context.
DTRUN_API const char* dtrun_context_option(const dtrun_context* context, const char* name);
/// The place of this process among the ranks of the job.
DTRUN_API dtrun_topology dtrun_context_topology(const dtrun_context* context);
/// The number of hosts of the job.
DTRUN_API int32_t dtrun_context_host_count(const dtrun_context* context);
/// The name of host number `host`, in the order of the host list. NULL when `host` is out of range.
/// Valid as long as the context.
DTRUN_API const char* dtrun_context_host_name(const dtrun_context* context, int32_t host);
/// The number of ranks on host number `host`. 0 when `host` is out of range.
DTRUN_API int32_t dtrun_context_host_slots(const dtrun_context* context, int32_t host);
/// The number of the host of a rank. `rank` is the rank's number of the launch, as in errors. -1 if
/// the job has no such rank.
DTRUN_API int32_t dtrun_context_host_of_rank(const dtrun_context* context, int32_t rank);
/// The number of compute threads that this rank should use, from the CPUs that it may run on.
DTRUN_API int32_t dtrun_context_threads(const dtrun_context* context);
/// The width of the user's terminal, in columns. 0 if the output goes to a file or a pipe.
DTRUN_API int32_t dtrun_context_terminal_columns(const dtrun_context* context);
/// The communicator of all ranks. It belongs to the context.
DTRUN_API dtrun_communicator* dtrun_context_world(dtrun_context* context);
/// After an error with code `error_code`: sets `*recovers` to 1 if the job has lost ranks and
/// starts them again (`dtrun --restarts`). Then the objects made from the context, and at last the
/// context, may only be destroyed. dtrun_init joins the job again. Sets `*recovers` to 0 if the
/// error has another reason. After DTRUN_PEER_LOST, waits up to 60 s for dtrun to notice the loss.
DTRUN_API dtrun_error* dtrun_await_recovery(
    dtrun_context* context, int32_t error_code, int32_t* recovers);
/// The number of ranks that the job had at its start. Its size may differ after ranks were lost or
/// have come (`dtrun --min-np`).
DTRUN_API int32_t dtrun_context_launch_size(const dtrun_context* context);
/// The epoch of the job that this context has joined. It grows when the job loses ranks, and when
/// ranks come. 0 at the start, and without `dtrun --restarts`.
DTRUN_API uint32_t dtrun_context_epoch(const dtrun_context* context);
/// Whether this rank is to keep the state of its training with dtrun_keep_state. That is so on the
/// first rank of each host if a loss ends all processes of the job (`dtrun --restarts` with
/// mpirun). Otherwise the state survives in the memory of the other ranks.
DTRUN_API int32_t dtrun_context_keeps_state(const dtrun_context* context);
/// Keeps `bytes` bytes at `state`, the state after step `step`, for the processes that take the
/// place of this one after a loss. Replaces the state kept before, in memory of the host: no disk
/// is written. A process that ends in this call leaves the state before. `name` is the caller's
/// name for the training, the same in all processes. Without room in the host's /dev/shm, logs a
/// warning once and leaves the state before. Does nothing on a rank that keeps no state.
DTRUN_API dtrun_error* dtrun_keep_state(
    dtrun_context* context, const char* name, uint64_t step, const void* state, size_t bytes);
/// The state that was kept on this host under `name`, by an earlier process. `*state` is valid
/// until the next call, and null if there is none. The states of two hosts differ by at most one
/// step: the one with the most steps is to become that of all ranks.
DTRUN_API dtrun_error* dtrun_load_state(
    dtrun_context* context, const char* name, uint64_t* step, const void** state, size_t* bytes);
/// Reports the progress of this rank since its start, for `dtrun --progress`: the steps done, and
/// the examples that this rank has computed. If a rank reports nothing, each dtrun_reducer_wait and
/// each step of a dtrun_shards counts as a step. The cost is two stores to memory. Any thread.
DTRUN_API dtrun_error* dtrun_report_progress(
    dtrun_context* context, uint64_t step, uint64_t examples);
/// Starts a timeline of all ranks. Collective. From here on, every rank records its operations in
/// memory, in at most 16 MiB. Further records are counted and dropped. `path` is a file of rank 0.
/// DTRUN_SYSTEM, on all ranks: rank 0 cannot write the file. DTRUN_INVALID_ARGUMENT: a timeline is
/// already running, from here or from `dtrun --timeline`. DTRUN_UNAVAILABLE: the job has parameter
/// servers.
DTRUN_API dtrun_error* dtrun_timeline_start(dtrun_context* context, const char* path);
/// Stops the timeline. Collective. Rank 0 writes the timeline of all ranks since the start, as JSON
/// in the trace event format of Chrome and Perfetto. Then another timeline may be started.
/// dtrun_shutdown stops a running timeline.
DTRUN_API dtrun_error* dtrun_timeline_stop(dtrun_context* context);
/// Prepares `count` replicas in this process, 1 to 1024. The context outlives them.
DTRUN_API dtrun_error* dtrun_replicas_create(
    dtrun_context* context, int32_t count, dtrun_replicas** replicas);
/// Makes the calling thread replica `index`. Collective over the replicas: `count` threads call it
/// at the same time, each with another index. `*world` is the communicator of all replicas, as this
/// thread uses it. It belongs to `replicas`.
DTRUN_API dtrun_error* dtrun_replicas_join(
    dtrun_replicas* replicas, int32_t index, dtrun_communicator** world);
/// Ends replica `index`, in its thread, before `dtrun_replicas_destroy`. If `failed` is 0: waits
/// for the end of all replicas, or DTRUN_MISMATCH if one is still in an operation. If `failed` is
/// not 0: operations of the other replicas that wait for this one end with DTRUN_PEER_LOST.
DTRUN_API dtrun_error* dtrun_replicas_leave(
    dtrun_replicas* replicas, int32_t index, int32_t failed);
/// Frees the replicas, after their threads have ended.
DTRUN_API void dtrun_replicas_destroy(dtrun_replicas* replicas);
/// The number of GPUs that this process can use. If there are none: DTRUN_UNAVAILABLE, with the
/// reason.
DTRUN_API dtrun_error* dtrun_cuda_device_count(int32_t* count);

/// The rank of this process in the communicator, from 0.
DTRUN_API int32_t dtrun_communicator_rank(const dtrun_communicator* communicator);
/// The number of ranks of the communicator.
DTRUN_API int32_t dtrun_communicator_size(const dtrun_communicator* communicator);
/// The backend that moves the data: "self", "shm", "hierarchical", "tcp", "ucx" or "mpi". Valid as
/// long as the communicator.
DTRUN_API const char* dtrun_communicator_backend(const dtrun_communicator* communicator);
/// The name in errors and records: "world", "world/1" (the first communicator made from the world),
/// "world/2:0" (a split, with its colour). Valid as long as the communicator.
DTRUN_API const char* dtrun_communicator_name(const dtrun_communicator* communicator);
/// Makes a communicator of the same ranks. Collective. Operations of the two communicators never
/// interleave.
DTRUN_API dtrun_error* dtrun_communicator_duplicate(
    dtrun_communicator* communicator, dtrun_communicator** duplicate);
/// After DTRUN_PEER_LOST or DTRUN_TIMEOUT: makes a communicator of the ranks that are left, in rank
/// order. Collective over these ranks. After DTRUN_TIMEOUT, a rank for which an operation has
/// waited is left out if it does not come within half a second after the other ranks. Only if `tcp`
/// or `ucx` connects the ranks; otherwise DTRUN_UNAVAILABLE. DTRUN_PEER_LOST: the other ranks go on
/// without this rank.
DTRUN_API dtrun_error* dtrun_communicator_reform(
    dtrun_communicator* communicator, dtrun_communicator** left);
/// Makes one communicator for the ranks of each colour, ordered by key and then by rank here.
/// Collective. `*part` is NULL for a rank with a negative colour.
///
///   4 ranks, colours 0 1 0 1, keys 0 0 0 -1:   ranks {0, 2} and {3, 1}
DTRUN_API dtrun_error* dtrun_communicator_split(
    dtrun_communicator* communicator, int32_t colour, int32_t key, dtrun_communicator** part);
/// Makes a communicator of the `rank_count` different ranks in `ranks`, in this order. Collective
/// over all ranks, listed or not. All ranks pass the same list, otherwise DTRUN_MISMATCH. `*subset`
/// is NULL for a rank that is not listed.
DTRUN_API dtrun_error* dtrun_communicator_subset(
    dtrun_communicator* communicator, const int32_t* ranks, size_t rank_count,
    dtrun_communicator** subset);
/// Frees a communicator. The world is freed with its context, and is not changed here.
DTRUN_API void dtrun_communicator_destroy(dtrun_communicator* communicator);

/// Allocates zeroed memory, aligned to 4096 bytes. Collective. If the backend can, collectives of
/// this communicator reduce this memory in place, without a copy (shm: every rank of the host maps
/// it). Ranks may ask for different sizes.
DTRUN_API dtrun_error* dtrun_communicator_allocate(
    dtrun_communicator* communicator, uint64_t bytes, dtrun_memory** memory);
/// Allocates zeroed memory that all ranks share. Collective. `bytes` is the same on all ranks. The
/// program orders writes and reads of different ranks, for example by a barrier. DTRUN_UNAVAILABLE:
/// the ranks do not share a host.
DTRUN_API dtrun_error* dtrun_communicator_allocate_shared(
    dtrun_communicator* communicator, uint64_t bytes, dtrun_memory** memory);
/// The first byte of the memory.
DTRUN_API void* dtrun_memory_data(const dtrun_memory* memory);
/// The size of the memory on this rank, in bytes.
DTRUN_API uint64_t dtrun_memory_bytes(const dtrun_memory* memory);
/// Frees memory. Memory of dtrun_communicator_register_on_device stays the program's.
DTRUN_API void dtrun_memory_destroy(dtrun_memory* memory);

/// Copies the bytes of rank `root` to `*received` on every rank, the root included. Collective.
/// `data` and `bytes` of the other ranks are ignored.
DTRUN_API dtrun_error* dtrun_broadcast_bytes(
    dtrun_communicator* communicator, const void* data, uint64_t bytes, int32_t root,
    dtrun_memory** received);

/// \file
/// \details **Operations.** A call starts an operation and `dtrun_work_wait` finishes it. Until
/// then the operation owns the buffers that it was given; tables of counts are read before the call
/// returns. All ranks of a communicator start the same collectives in the same order. Many
/// operations may be under way. p is the number of ranks.
///
/// **Counts** are in elements. A table of counts has one entry per rank; NULL means the same count
/// for every rank. An empty buffer may have data NULL.
///
/// **Errors.** A start checks this rank's own arguments before anything is sent. It returns
/// DTRUN_INVALID_ARGUMENT (the text names the argument, the value found and the value expected) or
/// DTRUN_UNAVAILABLE (device memory). A wait returns the errors that only all ranks together can
/// detect, on every rank: DTRUN_MISMATCH (with the call of each rank), DTRUN_PEER_LOST,
/// DTRUN_TIMEOUT (with the missing ranks), DTRUN_SYSTEM. After DTRUN_MISMATCH, the next operation
/// of the communicator works. After DTRUN_PEER_LOST or DTRUN_TIMEOUT, only
/// dtrun_communicator_reform and dtrun_communicator_destroy may be called.
///
/// **In place** means that two buffers of one call are the same memory. Each operation says if it
/// allows that. Any other overlap of an input with an output is DTRUN_INVALID_ARGUMENT. An input
/// that is not in place is not changed.
///
/// **Arithmetic** of all_reduce, reduce_scatter and reduce. Each element is combined over the ranks
/// in a balanced tree in rank order, for 5 ranks ((a + b) + c) + (d + e). Therefore the result has
/// the same bits on every rank and in every run. On several hosts (backend "hierarchical") the
/// ranks of each host are combined first, then the hosts. Then the bits also depend on which ranks
/// share a host, and on the option wire_dtype.
///  - f16 and bf16 accumulate in f32 and are rounded once, to nearest, ties to even. On several
///    hosts they are rounded once in each host and once at the end.
///  - Integers wrap. Their average is the wrapped sum, divided, truncated toward zero.
///  - The average of floats is the sum times 1 / p.
///  - The min and the max of a NaN and another float are NaN.
///  - For bools, sum, max and average are "or"; product and min are "and".
///  - If `scale` is NULL, nothing is scaled.

/// Starts an all-reduce: `output` becomes the reduction of all inputs, on every rank. All ranks
/// pass the same count and type. In place: output.data == input.data.
///
///   inputs {1, 2} and {3, 5}, DTRUN_SUM   ->   outputs {4, 7} and {4, 7}
DTRUN_API dtrun_error* dtrun_start_all_reduce(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t reduce_op,
    const dtrun_scale* scale, dtrun_work** work);
/// Starts a reduce-scatter: `output` becomes this rank's share of the reduction of all inputs. The
/// shares lie in rank order and cover the input. `shares`, the same on all ranks, has the counts of
/// the shares. If it is NULL, the elements are dealt: the first input.count % p ranks get one
/// element more. In place: the output is this rank's share of the input. Afterwards the rest of the
/// input is unspecified.
///
///   inputs {1, 2, 3} and {4, 5, 6}, DTRUN_SUM, NULL   ->   outputs {5, 7} and {9}
DTRUN_API dtrun_error* dtrun_start_reduce_scatter(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t reduce_op,
    const dtrun_scale* scale, const uint64_t* shares, dtrun_work** work);
/// Starts a reduce: `output` becomes the reduction of all inputs on rank `root`. The other ranks'
/// `output` is ignored. In place: output.data == input.data.
///
///   inputs {1, 2} and {3, 5}, root 1, DTRUN_SUM   ->   output of rank 1: {4, 7}
DTRUN_API dtrun_error* dtrun_start_reduce(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t root,
    int32_t reduce_op, const dtrun_scale* scale, dtrun_work** work);
/// Starts a broadcast: the `buffer` of rank `root` is copied into the `buffer` of every other rank.
///
///   buffers {1, 2} and {3, 5}, root 1   ->   both {3, 5}
DTRUN_API dtrun_error* dtrun_start_broadcast(
    dtrun_communicator* communicator, dtrun_buffer buffer, int32_t root, dtrun_work** work);
/// Starts an all-gather: `output` becomes the inputs of all ranks in rank order, on every rank.
/// `receive_counts[r]` is the count of rank r's input. NULL: all ranks have the same count as this
/// rank. In place: the input is this rank's part of the output.
///
///   inputs {1, 2} and {3}, receive_counts {2, 1}   ->   both outputs {1, 2, 3}
DTRUN_API dtrun_error* dtrun_start_all_gather(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output,
    const uint64_t* receive_counts, dtrun_work** work);
/// Starts an all-to-all: every rank sends a part of its input to every rank, itself included. The
/// input has the parts in the order of their destination ranks, the output in the order of their
/// source ranks. `send_counts[r]` elements go to rank r, and `receive_counts[r]` elements come from
/// rank r. If rank a expects a different count from rank b than b sends to a, DTRUN_MISMATCH names
/// the pair. Both NULL: each part has input.count / p elements, and p divides input.count. Never in
/// place.
///
///   inputs {1, 2, 3} and {4, 5}; send_counts {1, 2} and {0, 2}; receive_counts {1, 0} and {2, 2}
///   ->   outputs {1} and {2, 3, 4, 5}
DTRUN_API dtrun_error* dtrun_start_all_to_all(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output,
    const uint64_t* send_counts, const uint64_t* receive_counts, dtrun_work** work);
/// Starts a gather: `output` becomes the inputs of all ranks in rank order, on rank `root`. The
/// other ranks' `output` and `receive_counts` are ignored. `receive_counts[r]` is the count of rank
/// r's input. NULL: all ranks have the same count as the root. In place: the root's input is its
/// part of the output.
///
///   inputs {1, 2} and {3}, root 0, receive_counts {2, 1}   ->   output of rank 0: {1, 2, 3}
DTRUN_API dtrun_error* dtrun_start_gather(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t root,
    const uint64_t* receive_counts, dtrun_work** work);
/// Starts a scatter: `output` becomes this rank's part of the input of rank `root`. The input
/// has the parts in rank order. The other ranks' `input` and `send_counts` are ignored.
/// `send_counts[r]` is the count of rank r's output. NULL: all ranks have the same count as the
/// root. In place: the root's output is its part of the input.
///
///   input of rank 0: {1, 2, 3}, root 0, send_counts {2, 1}   ->   outputs {1, 2} and {3}
DTRUN_API dtrun_error* dtrun_start_scatter(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t root,
    const uint64_t* send_counts, dtrun_work** work);
/// Starts a barrier. It is done when every rank has started it.
DTRUN_API dtrun_error* dtrun_start_barrier(dtrun_communicator* communicator, dtrun_work** work);

/// Starts sending `buffer` to rank `peer`, which is another rank. The n-th send of rank a to rank b
/// matches the n-th receive of b from a. Both have the same count and type, otherwise
/// DTRUN_MISMATCH on both ranks. Messages and collectives do not wait for each other. Start all
/// sends and receives of an exchange before you wait for any of them: a wait for a send may block
/// until the peer starts its receive.
///
///   right:   both start_receive(peer), start_send(peer), then wait for the two
///   wrong:   both start_send(peer) and wait for it, then start_receive(peer)
DTRUN_API dtrun_error* dtrun_start_send(
    dtrun_communicator* communicator, dtrun_buffer buffer, int32_t peer, dtrun_work** work);
/// Starts receiving into `buffer` from rank `peer`. See dtrun_start_send.
DTRUN_API dtrun_error* dtrun_start_receive(
    dtrun_communicator* communicator, dtrun_buffer buffer, int32_t peer, dtrun_work** work);

/// Deals `rows` rows of `row_elements` elements to `size` ranks, as reduce_scatter deals elements:
/// the first rows % size ranks get one row more. Fills `counts[size]`, in elements.
///
///   5 rows of 10 elements, 2 ranks   ->   {30, 20}
DTRUN_API dtrun_error* dtrun_deal_rows(
    uint64_t rows, uint64_t row_elements, int32_t size, uint64_t* counts);

/// Advances the operation without blocking. `*done` becomes 1 once the operation has finished.
DTRUN_API dtrun_error* dtrun_work_test(dtrun_work* work, int32_t* done);
/// Blocks until the operation has finished or failed, and advances it meanwhile.
DTRUN_API dtrun_error* dtrun_work_wait(dtrun_work* work);
/// Frees a handle. An unfinished operation continues without its handle and still owns its buffers.
DTRUN_API void dtrun_work_destroy(dtrun_work* work);

/// Finishes an operation that was started in the same line: waits for the work and destroys it.
///
///   error = dtrun_finish(dtrun_start_barrier(communicator, &work), &work);
static inline dtrun_error* dtrun_finish(dtrun_error* started, dtrun_work** work) {
  dtrun_error* error = started;
  if (error != NULL) return error;
  error = dtrun_work_wait(*work);
  dtrun_work_destroy(*work);
  *work = NULL;
  return error;
}

/// One gradient of a reducer. If `buffer.data` is NULL, the gradient gets a place in the reducer's
/// own block and is reduced there without a copy. Otherwise the gradient lies in the caller's
/// memory: its mark copies it into the block, and the wait copies the result back. A gradient that
/// has its own bucket (`dtrun_reducer_is_alone`) is reduced in the caller's memory, without a copy.
typedef struct dtrun_gradient {
  const char* name;     ///< not empty, and different from the other names of the reducer
  dtrun_buffer buffer;  ///< its count, type and place
} dtrun_gradient;

/// Creates a reducer of gradients. Collective. All ranks pass the same names (none twice, none
/// empty), counts and types in the same order. DTRUN_MISMATCH names the first gradient that
/// differs. `bucket_bytes` 0 means the option of that name.
///
/// Any error of a reducer except DTRUN_INVALID_ARGUMENT breaks the reducer: later calls return the
/// error again.
DTRUN_API dtrun_error* dtrun_reducer_create(
    dtrun_communicator* communicator, const dtrun_gradient* gradients, size_t gradient_count,
    int32_t reduce_op, uint64_t bucket_bytes, dtrun_reducer** reducer);

/// The format of buckets while they are reduced.
enum {
  DTRUN_WIRE_NONE = 0,  ///< unchanged
  DTRUN_WIRE_F16 = 1,   ///< f32 and f64, rounded to f16; the result has the gradient's type
  DTRUN_WIRE_BF16 = 2   ///< the same with bf16
};

/// A user-defined wire format for buckets of f32 and f64. Each rank compresses its gradients. The
/// compressed elements are reduced one by one, with the reducer's operation and scale, in the
/// arithmetic of `dtype`. Each rank decompresses the result.
///
/// The functions run on the thread that marks or waits. They return 0 for success. Any other number
/// is a failure: the call that ran the function returns DTRUN_SYSTEM with that number. This rank's
/// reducer is then unusable, and the other ranks get DTRUN_TIMEOUT or DTRUN_PEER_LOST.
///
/// Buckets are numbered from 0. `gradients` is the bucket: gradients in a row, each padded to a
/// multiple of 64 bytes. The padding is zero unless `decompress` has written to it. Both buffers
/// are host memory. If the gradients lie on a GPU, the host waits for them and copies them there.
typedef struct dtrun_wire_format {
  const char* name;  ///< compared between the ranks
  int32_t dtype;     ///< the type of an element on the wire
  int32_t reserved;  ///< 0
  void* context;     ///< passed to the functions; outlives the reducer
  /// Sets `*wire_count` to the number of elements on the wire. `gradients` has no data. Called for
  /// each bucket in order when the reducer is created, and again whenever the buckets have changed.
  /// A change makes all state kept for a bucket invalid.
  int32_t (*count)(void* context, uint64_t bucket, dtrun_buffer gradients, uint64_t* wire_count);
  /// Compresses `gradients` into `wire`, which has the number of elements from `count`.
  int32_t (*compress)(void* context, uint64_t bucket, dtrun_buffer gradients, dtrun_buffer wire);
  /// Decompresses the reduced elements in `wire` into `gradients`.
  int32_t (*decompress)(void* context, uint64_t bucket, dtrun_buffer wire, dtrun_buffer gradients);
} dtrun_wire_format;

/// A set of gradients, by index.
typedef struct dtrun_group {
  const uint64_t* gradients;  ///< indices in the reducer's list of gradients
  size_t gradient_count;      ///< length of `gradients`
} dtrun_group;

/// The options of a reducer. Begin with `dtrun_default_reducer_options`: later versions may add
/// members at the end.
typedef struct dtrun_reducer_options {
  uint64_t struct_bytes;  ///< size of this struct in the calling program
  int32_t reduce_op;      ///< DTRUN_SUM ... DTRUN_PRODUCT
  int32_t reserved;       ///< 0
  uint64_t bucket_bytes;  ///< 0: the option of that name
  dtrun_scale scale;      ///< for DTRUN_SUM and DTRUN_AVERAGE; each factor in [1/1024, 1024]
  /// The size of the first bucket that a backward pass fills. A small first bucket starts the
  /// communication early. At most `bucket_bytes`. 0: 1 MiB, or `bucket_bytes` if that is less.
  uint64_t first_bucket_bytes;
  /// Groups of gradients that are reduced together. The gradients of a group have one type. Each
  /// group is one bucket of any size.
  const dtrun_group* groups;
  size_t group_count;  ///< length of `groups`
  /// An alternative to `groups`: deals all gradients, in their order, to this many groups with
  /// nearly equal numbers of gradients. A group of several types becomes one bucket per type. 0:
  /// use `groups`.
  uint64_t equal_groups;
  int32_t wire;  ///< DTRUN_WIRE_NONE ... DTRUN_WIRE_BF16
  /// 0: the buckets always follow the order of the list. Otherwise the reducer forms new buckets
  /// once, at the end of the first wait, in the order in which rank 0 marked the gradients. The
  /// places of the gradients, `dtrun_reducer_is_alone` and the bits of the results stay the same.
  int32_t rebuild;
  const dtrun_wire_format* wire_format;  ///< NULL: none. Copied. If set, `wire` is DTRUN_WIRE_NONE
} dtrun_reducer_options;

/// The average, in buckets of the default sizes, unscaled, uncompressed, with buckets rebuilt once.
static inline dtrun_reducer_options dtrun_default_reducer_options(void) {
  dtrun_reducer_options options;
  options.struct_bytes = sizeof(dtrun_reducer_options);
  options.reduce_op = DTRUN_AVERAGE;
  options.reserved = 0;
  options.bucket_bytes = 0;
  options.scale.before = 1;
  options.scale.after = 1;
  options.first_bucket_bytes = 0;
  options.groups = NULL;
  options.group_count = 0;
  options.equal_groups = 0;
  options.wire = DTRUN_WIRE_NONE;
  options.rebuild = 1;
  options.wire_format = NULL;
  return options;
}

/// Creates a reducer as `dtrun_reducer_create` does, with all options. All ranks pass the same
/// options.
DTRUN_API dtrun_error* dtrun_reducer_create_with(
    dtrun_communicator* communicator, const dtrun_gradient* gradients, size_t gradient_count,
    const dtrun_reducer_options* options, dtrun_reducer** reducer);
/// The place of gradient `index`. Write the gradient there before you mark it.
DTRUN_API dtrun_error* dtrun_reducer_gradient(
    const dtrun_reducer* reducer, size_t index, dtrun_buffer* buffer);
/// Marks the gradient as complete. Its bucket starts when all gradients of the bucket are complete
/// and all earlier buckets have started. DTRUN_INVALID_ARGUMENT: the gradient was already marked
/// since the last wait, by any function.
DTRUN_API dtrun_error* dtrun_reducer_mark_ready(dtrun_reducer* reducer, size_t index);
/// The same for a gradient at `source`, with the same count and type. Copies the gradient into the
/// block in pieces, and advances the started buckets between the pieces. The result goes to the
/// place from `dtrun_reducer_gradient`. `source` is not changed.
DTRUN_API dtrun_error* dtrun_reducer_mark_ready_from(
    dtrun_reducer* reducer, size_t index, const void* source);
/// Marks that this rank has no such gradient in this step, and contributes zeros. If no rank has
/// the gradient, `dtrun_reducer_was_used` returns 0, and a gradient in the caller's memory keeps
/// its values.
DTRUN_API dtrun_error* dtrun_reducer_mark_unused(dtrun_reducer* reducer, size_t index);
/// Whether the gradient has its own bucket: it has at least `bucket_bytes` (1 MiB within a host, if
/// the size of buckets is `auto`) and at least 1 MiB, and shares no group with other gradients.
DTRUN_API dtrun_error* dtrun_reducer_is_alone(
    const dtrun_reducer* reducer, size_t index, int32_t* alone);
/// Marks a gradient that has its own bucket as complete. In this step the gradient is reduced at
/// `place`, and the result stays there. `place` is in the block or in the caller's own memory,
/// which is slower. In the block, `place` is the place of a gradient of the same size, and no other
/// gradient uses it in this step. If `source` differs from `place`, the gradient is first copied
/// from `source`. `source` has as many elements of the gradient's type.
DTRUN_API dtrun_error* dtrun_reducer_mark_ready_at(
    dtrun_reducer* reducer, size_t index, const void* source, void* place);
/// The same for a gradient that this rank does not have: writes zeros to `place`.
DTRUN_API dtrun_error* dtrun_reducer_mark_unused_at(
    dtrun_reducer* reducer, size_t index, void* place);
/// Sets `*used` to 0 if every rank marked the gradient as unused before the last wait. The result
/// is the same on all ranks, and valid until the gradient is marked again. It costs no operation:
/// the flags are a part of the last bucket.
DTRUN_API dtrun_error* dtrun_reducer_was_used(
    const dtrun_reducer* reducer, size_t index, int32_t* used);
/// Marks all remaining gradients as ready, reduces them, and returns when every gradient holds its
/// result on this rank.
DTRUN_API dtrun_error* dtrun_reducer_wait(dtrun_reducer* reducer);

/// The time that steps took on this rank. A step lasts from the end of a wait to the end of the
/// next wait. The first step begins with the reducer. Begin with `dtrun_new_step_statistics`: later
/// versions may add members at the end.
typedef struct dtrun_step_statistics {
  uint64_t struct_bytes;  ///< size of this struct in the calling program
  uint64_t steps;         ///< number of ended steps
  double total_s;         ///< seconds
  double exposed_s;       ///< part of total_s: in the reducer, not hidden behind the trainer's
                          ///< computation
  double late_s;          ///< part of exposed_s: waiting for ranks that arrived late
  uint64_t bytes;         ///< reduced bytes, with padding
  uint64_t buckets;       ///< collectives that reduced them
} dtrun_step_statistics;

/// The statistics of no step: all numbers are 0.
static inline dtrun_step_statistics dtrun_new_step_statistics(void) {
  dtrun_step_statistics statistics;
  statistics.struct_bytes = sizeof(dtrun_step_statistics);
  statistics.steps = 0;
  statistics.total_s = statistics.exposed_s = statistics.late_s = 0;
  statistics.bytes = statistics.buckets = 0;
  return statistics;
}

/// The statistics of the last step, and of all steps together. Either may be NULL. The measurement
/// reads the clock a few times per step. A mark is timed only if it starts a bucket, advances a
/// started bucket or copies at least 64 KiB.
DTRUN_API dtrun_error* dtrun_reducer_statistics(
    const dtrun_reducer* reducer, dtrun_step_statistics* last, dtrun_step_statistics* total);
/// Sets `seconds[r]` to the part of `late_s`, over all steps, in which rank r of the communicator
/// was missing, for the first `count` ranks. Several ranks may be missing at a time.
DTRUN_API dtrun_error* dtrun_reducer_late_ranks(
    const dtrun_reducer* reducer, double* seconds, size_t count);
/// Frees a reducer and its block. Gradients in the caller's memory stay.
DTRUN_API void dtrun_reducer_destroy(dtrun_reducer* reducer);

/// A sharded parameter. Each rank updates one share of a model's parameters, and keeps the
/// optimizer's state of that share only. The gradients and the values lie in memory from dtrun. The
/// ranks of one host reduce, update and distribute in one pass over that memory.
typedef struct dtrun_sharded_parameter {
  const char* name;    ///< the same on all ranks
  dtrun_buffer value;  ///< the initial values; the gradient has the same count and type
} dtrun_sharded_parameter;

/// The options of sharded parameters. Begin with `dtrun_default_shards_options`: later versions may
/// add members at the end.
typedef struct dtrun_shards_options {
  uint64_t struct_bytes;       ///< size of this struct in the calling program
  int32_t reduce_op;           ///< DTRUN_AVERAGE or DTRUN_SUM
  int32_t one_copy_per_host;   ///< 1: the ranks of a host share one copy of the values
  uint64_t bucket_bytes;       ///< 0: the option of that name; ignored within one host
  uint64_t slot_count;         ///< state values per element
  const int32_t* slot_dtypes;  ///< type of each slot: DTRUN_U8 ... DTRUN_BOOL; -1: the parameter's
                               ///< type
} dtrun_shards_options;

/// The average, one copy of the values per rank, no state.
static inline dtrun_shards_options dtrun_default_shards_options(void) {
  dtrun_shards_options options;
  options.struct_bytes = sizeof(dtrun_shards_options);
  options.reduce_op = DTRUN_AVERAGE;
  options.one_copy_per_host = 0;
  options.bucket_bytes = 0;
  options.slot_count = 0;
  options.slot_dtypes = NULL;
  return options;
}

/// The elements [first, first + count) of a parameter, to be updated. The pointers point to the
/// first of these elements.
typedef struct dtrun_parameter_slice {
  uint64_t parameter;    ///< index
  uint64_t first,        ///< index of the first element in the parameter
      count;             ///< number of elements
  const void* gradient;  ///< the reduced gradient
  void* value;           ///< the values, to be updated in place
  void* const* slots;    ///< by slot; zeros in the first step
} dtrun_parameter_slice;

/// Updates the elements of a slice. Only the functions over single buffers (dtrun_multiply and so
/// on) may be called in it. It throws no exception.
typedef void (*dtrun_update_function)(void* argument, const dtrun_parameter_slice* slice);

/// Creates sharded parameters. Collective. All ranks pass the same names, counts, types and
/// options. DTRUN_MISMATCH names the first parameter that differs. All ranks start from rank 0's
/// values.
///
/// If the values lie on a GPU, all of them in one stream, gradients, values and state lie there
/// too. An update then enqueues its work into that stream.
///
/// One copy per host needs values in host memory, and shared memory between the ranks of each host,
/// otherwise DTRUN_UNAVAILABLE. The pages of the original values then go back to the system. Their
/// contents are unspecified until the program writes them.
DTRUN_API dtrun_error* dtrun_shards_create(
    dtrun_communicator* communicator, const dtrun_sharded_parameter* parameters,
    size_t parameter_count, const dtrun_shards_options* options, dtrun_shards** shards);
/// The place of gradient `index`. Write the gradient there before you mark it.
DTRUN_API dtrun_error* dtrun_shards_gradient(
    const dtrun_shards* shards, size_t index, dtrun_buffer* buffer);
/// The place of the values of parameter `index`, as long as `shards` lives.
DTRUN_API dtrun_error* dtrun_shards_value(
    const dtrun_shards* shards, size_t index, dtrun_buffer* buffer);
/// Marks the gradient as complete. Do not touch it until the step has ended: between hosts its
/// reduction may start. DTRUN_INVALID_ARGUMENT: the gradient was already marked since the last
/// step.
DTRUN_API dtrun_error* dtrun_shards_mark_ready(dtrun_shards* shards, size_t index);
/// Computes norms before a step. Collective. Completes the reduction, including gradients that were
/// not marked. Fills `gradients[i]` and `values[i]` with the sums of squares of parameter i, the
/// same on all ranks. The parameters are f32 or f64. `values` may be NULL, on all ranks.
DTRUN_API dtrun_error* dtrun_shards_squared_norms(
    dtrun_shards* shards, double* gradients, double* values);
/// Completes the reduction, multiplies the gradients by `factor`, and calls `update` for the slices
/// of this rank's share. Collective. `update` runs on this thread, in any order of slices, once for
/// each element. After the return, the new values are still on their way to this rank: wait with
/// dtrun_shards_wait_for.
DTRUN_API dtrun_error* dtrun_shards_step(
    dtrun_shards* shards, double factor, dtrun_update_function update, void* argument);

/// SGD with momentum in one formula, for each element:
///
///   g     = gradient + decay * value
///   m     = keep * m + take * g                       m: state slot 0
///   value = value + by_momentum * m + by_gradient * g
///
/// Classic momentum: keep, take = 1, by_momentum = -rate. Keras: take = -rate, by_momentum = 1.
/// Nesterov: by_momentum = -rate * keep, by_gradient = -rate. If there is no slot, there is no m.
/// Begin with `dtrun_default_momentum_step`.
typedef struct dtrun_momentum_step {
  uint64_t struct_bytes;  ///< size of this struct in the calling program
  double keep,            ///< factor of the last m
      take,               ///< factor of g in m
      decay,              ///< factor of the value in g
      by_momentum,        ///< factor of m in the change of the value
      by_gradient;        ///< factor of g in the change of the value
  const uint8_t* frozen;  ///< by parameter; not 0: the parameter is not changed; NULL: none is
                          ///< frozen
} dtrun_momentum_step;

/// A step that changes no value.
static inline dtrun_momentum_step dtrun_default_momentum_step(void) {
  dtrun_momentum_step step;
  step.struct_bytes = sizeof(dtrun_momentum_step);
  step.keep = 0;
  step.take = 1;
  step.decay = 0;
  step.by_momentum = 0;
  step.by_gradient = 0;
  step.frozen = NULL;
  return step;
}

/// Does dtrun_shards_step with this update. Collective. dtrun computes the update in the same pass
/// over memory that reduces, which is faster than a function that is called for slices.
/// DTRUN_INVALID_ARGUMENT: a parameter or its state is not f32, or there is more than one slot.
/// DTRUN_UNAVAILABLE: the parameters lie on a GPU.
DTRUN_API dtrun_error* dtrun_shards_step_momentum(
    dtrun_shards* shards, double factor, const dtrun_momentum_step* step);
/// Returns when parameter `index` holds the values of the last step.
DTRUN_API dtrun_error* dtrun_shards_wait_for(dtrun_shards* shards, size_t index);
/// Calls `visit` for each slice of this rank's share, for example to copy the state. Local. The
/// gradients of the slices are unspecified. Values and state are those of the last step.
DTRUN_API dtrun_error* dtrun_shards_own_slices(
    dtrun_shards* shards, dtrun_update_function visit, void* argument);
/// The next dtrun_shards_step also writes the new state of this rank's share to `places`, while it
/// is in the cache. Place i * slots + s gets state s of slice i, in the order of
/// dtrun_shards_own_slices, and has room for its elements. Before the first is written, when all
/// ranks have begun the step, the step calls `begin`. Local. Steps on a GPU and
/// dtrun_shards_step_momentum do not copy; nor does any step if `count` is 0.
/// DTRUN_INVALID_ARGUMENT: `count` is wrong.
DTRUN_API dtrun_error* dtrun_shards_copy_state(
    dtrun_shards* shards, void* const* places, size_t count, void (*begin)(void* argument),
    void* argument);
/// 1: the last step has written the state to the places of dtrun_shards_copy_state, and no state
/// was set since.
DTRUN_API dtrun_error* dtrun_shards_state_is_copied(const dtrun_shards* shards, int32_t* is_copied);
/// Gathers the whole of state `slot` of parameter `index` in `output` on rank `root`, or on all
/// ranks if `root` is -1. Collective. `output` has as many elements as the parameter.
DTRUN_API dtrun_error* dtrun_shards_gather_state(
    dtrun_shards* shards, size_t slot, size_t index, int32_t root, void* output);
/// The reverse, on this rank alone: takes this rank's share from the whole state at `input`. The
/// state may come from a job with another number of ranks.
DTRUN_API dtrun_error* dtrun_shards_set_state(
    dtrun_shards* shards, size_t slot, size_t index, const void* input);
/// The statistics of the last step, and of all steps together, as in dtrun_reducer_statistics.
/// Either may be NULL.
DTRUN_API dtrun_error* dtrun_shards_statistics(
    const dtrun_shards* shards, dtrun_step_statistics* last, dtrun_step_statistics* total);
/// Frees sharded parameters, with the memory of their gradients, values and state.
DTRUN_API void dtrun_shards_destroy(dtrun_shards* shards);

/// A named array in host memory, row-major.
typedef struct dtrun_tensor {
  const char* name;       ///< UTF-8; not empty, and not "__metadata__"
  dtrun_buffer buffer;    ///< the elements, in host memory
  const uint64_t* shape;  ///< buffer.count is the product of these lengths
  uint64_t dimensions;    ///< length of `shape`; 0: a scalar
} dtrun_tensor;

/// An annotation that is saved with tensors, in UTF-8. Keys that begin with "dtrun." are reserved
/// for dtrun.
typedef struct dtrun_metadata {
  const char* key;    ///< the name of the annotation; the last entry of a key wins
  const char* value;  ///< the text of the annotation
} dtrun_metadata;

/// Writes one file in the safetensors format, from one process alone. The data goes to a temporary
/// file, is flushed to the disk, and is then renamed. After a failure `path` is unchanged.
/// DTRUN_INVALID_ARGUMENT: a tensor is wrong (a name that occurs twice, a shape that does not match
/// the count). DTRUN_SYSTEM: the file, and why. Any thread.
DTRUN_API dtrun_error* dtrun_save_tensors(
    const char* path, const dtrun_tensor* tensors, size_t tensor_count,
    const dtrun_metadata* metadata, size_t metadata_count);
/// Reads a safetensors file of any program and checks all bytes: the rules of the format and, if
/// dtrun wrote the file, the checksums. DTRUN_INVALID_ARGUMENT: the file breaks a rule, or a byte
/// has changed. DTRUN_UNAVAILABLE: the file has an element type that dtrun does not have.
/// DTRUN_SYSTEM: the file cannot be read. Any thread.
DTRUN_API dtrun_error* dtrun_load_tensors(const char* path, dtrun_tensor_file** file);
/// The number of tensors in the file.
DTRUN_API size_t dtrun_tensor_file_count(const dtrun_tensor_file* file);
/// The tensors in the order of their names. The file owns their data, which is aligned to the
/// element size. NULL when `index` is out of range.
DTRUN_API const dtrun_tensor* dtrun_tensor_file_tensor(const dtrun_tensor_file* file, size_t index);
/// The number of annotations in the file, without dtrun's own keys.
DTRUN_API size_t dtrun_tensor_file_metadata_count(const dtrun_tensor_file* file);
/// The metadata in the order of the keys, without dtrun's own keys. NULL when `index` is out of
/// range.
DTRUN_API const dtrun_metadata* dtrun_tensor_file_metadata(
    const dtrun_tensor_file* file, size_t index);
/// Frees the content of a file, with the data of its tensors.
DTRUN_API void dtrun_tensor_file_destroy(dtrun_tensor_file* file);

/// The rule that finds the better of two checkpoints, by the values that they were saved with.
enum {
  DTRUN_BEST_NONE = 0,    ///< no checkpoint is the best
  DTRUN_BEST_LOWEST = 1,  ///< the lowest value is the best
  DTRUN_BEST_HIGHEST = 2  ///< the highest value is the best
};

/// The options of a checkpoint manager. Begin with `dtrun_default_checkpoint_options`: later
/// versions may add members at the end.
typedef struct dtrun_checkpoint_options {
  uint64_t struct_bytes;  ///< size of this struct in the calling program
  uint64_t max_to_keep;   ///< keeps this many of the newest checkpoints; 0: all
  int32_t best;           ///< DTRUN_BEST_...: the best checkpoint is also kept
  int32_t sharded;        ///< 1: every rank writes a part of the bytes, into one shared folder
  int32_t read_only;      ///< 1: writes no file and takes no lock
  int32_t reserved;       ///< 0
} dtrun_checkpoint_options;

/// All checkpoints are kept. Rank 0 writes.
static inline dtrun_checkpoint_options dtrun_default_checkpoint_options(void) {
  dtrun_checkpoint_options options;
  options.struct_bytes = sizeof(dtrun_checkpoint_options);
  options.max_to_keep = 0;
  options.best = DTRUN_BEST_NONE;
  options.sharded = 0;
  options.read_only = 0;
  options.reserved = 0;
  return options;
}

/// The options of a save. Begin with `dtrun_default_save_options`: later versions may add members
/// at the end.
typedef struct dtrun_save_options {
  uint64_t struct_bytes;  ///< size of this struct in the calling program
  /// A file name: without '/', no '.' in front, not "latest" or "best". A checkpoint of that name
  /// is replaced at the moment when the new one is complete. NULL: "ckpt_<step>".
  const char* name;
  uint64_t step;      ///< the training step of the saved values
  double value;       ///< finds the best checkpoint; finite
  int32_t has_value;  ///< 1: `value` is set
  /// 1: the call returns when the tensors are copied, and a background thread writes.
  int32_t asynchronous;
  const dtrun_metadata* metadata;  ///< annotations to save with the tensors
  uint64_t metadata_count;         ///< length of `metadata`
} dtrun_save_options;

/// Step 0, the name "ckpt_0", no value, no metadata, and no background thread.
static inline dtrun_save_options dtrun_default_save_options(void) {
  dtrun_save_options options;
  options.struct_bytes = sizeof(dtrun_save_options);
  options.name = NULL;
  options.step = 0;
  options.value = 0;
  options.has_value = 0;
  options.asynchronous = 0;
  options.metadata = NULL;
  options.metadata_count = 0;
  return options;
}

/// The options of a load. Begin with `dtrun_default_load_options`: later versions may add members
/// at the end.
typedef struct dtrun_load_options {
  uint64_t struct_bytes;     ///< size of this struct in the calling program
  const char* name;          ///< only this checkpoint; NULL: the newest valid checkpoint
  int32_t best;              ///< 1: by value instead of by age
  int32_t allow_unexpected;  ///< 1: ignore tensors of the checkpoint that are not requested
} dtrun_load_options;

/// The newest valid checkpoint. A tensor of the checkpoint that is not requested is an error.
static inline dtrun_load_options dtrun_default_load_options(void) {
  dtrun_load_options options;
  options.struct_bytes = sizeof(dtrun_load_options);
  options.name = NULL;
  options.best = 0;
  options.allow_unexpected = 0;
  return options;
}

/// A description of a checkpoint. Its strings and metadata belong to the list that it is in.
typedef struct dtrun_checkpoint {
  const char* name;     ///< the name of its folder, for example "ckpt_7"
  const char* path;     ///< of its folder
  const char* refused;  ///< why it is not valid, in a sentence; NULL: no fault is known
  uint64_t step;        ///< as saved; 0 if the checkpoint is not valid and its step is unknown
  double value;         ///< as saved; 0 if there is none
  int32_t has_value;    ///< 1: the checkpoint was saved with a value
  int32_t reserved;     ///< 0
  uint64_t bytes;       ///< total size of its files
  const dtrun_metadata* metadata;  ///< the annotations that were saved, in the order of the keys
  uint64_t metadata_count;         ///< length of `metadata`
} dtrun_checkpoint;

/// Opens the folder with the checkpoints of a job, and creates the folder if it is missing.
/// Collective, as are all functions of a manager except destroy. Every rank gets the same error.
/// Only one manager writes to a folder at a time: DTRUN_UNAVAILABLE names the host and the process
/// that holds it. Removes the unfinished checkpoint of a job that was killed.
DTRUN_API dtrun_error* dtrun_checkpoint_manager_create(
    dtrun_communicator* communicator, const char* folder, const dtrun_checkpoint_options* options,
    dtrun_checkpoint_manager** manager);
/// Saves tensors, which have the same names, types and shapes on all ranks. The values are those of
/// rank 0 or, when sharded, those of each rank for its part. After a return without an error, the
/// checkpoint is on the disk and survives the processes. For an asynchronous save, this holds after
/// a later wait. After an error the folder has the checkpoints that it had before. One save is
/// under way at a time: this call waits for the previous save. If the previous save failed, this
/// call returns its error and saves nothing.
DTRUN_API dtrun_error* dtrun_checkpoint_manager_save(
    dtrun_checkpoint_manager* manager, const dtrun_tensor* tensors, size_t tensor_count,
    const dtrun_save_options* options);
/// Waits for the save under way, and returns its error.
DTRUN_API dtrun_error* dtrun_checkpoint_manager_wait(dtrun_checkpoint_manager* manager);
/// The checkpoints, oldest first, valid or not. The function checks that their files exist, but
/// does not read the tensors.
DTRUN_API dtrun_error* dtrun_checkpoint_manager_list(
    dtrun_checkpoint_manager* manager, dtrun_checkpoint_list** list);
/// Fills the buffers on all ranks from a checkpoint, which may come from any number of ranks. Rank
/// 0 reads. Everything is checked before a buffer is touched: either all buffers are filled or
/// none.
///
/// The last entry of `*list` is the loaded checkpoint. The entries before it are better candidates
/// that are not valid; rank 0 also reports them on stderr. An empty list means that there is no
/// checkpoint. DTRUN_INVALID_ARGUMENT: the checkpoint is of another model, no checkpoint has the
/// given name, or no checkpoint is valid. For another model, the error lists the tensors that are
/// missing, unexpected, or of another type or shape.
DTRUN_API dtrun_error* dtrun_checkpoint_manager_load(
    dtrun_checkpoint_manager* manager, const dtrun_tensor* tensors, size_t tensor_count,
    const dtrun_load_options* options, dtrun_checkpoint_list** list);
/// Frees a checkpoint manager, after this rank's thread has written the save under way. Not
/// collective. An error of that save is lost: call wait first.
DTRUN_API void dtrun_checkpoint_manager_destroy(dtrun_checkpoint_manager* manager);
/// The number of checkpoints in the list.
DTRUN_API size_t dtrun_checkpoint_list_count(const dtrun_checkpoint_list* list);
/// Checkpoint `index` of the list. NULL when `index` is out of range. Valid as long as the list.
DTRUN_API const dtrun_checkpoint* dtrun_checkpoint_list_at(
    const dtrun_checkpoint_list* list, size_t index);
/// Frees a list of checkpoints, with their descriptions.
DTRUN_API void dtrun_checkpoint_list_destroy(dtrun_checkpoint_list* list);

#ifdef __cplusplus
}
#endif

#include <dtrun/detail/c_device.h>
#include <dtrun/detail/c_named_queue.h>
#include <dtrun/detail/c_parameter_server.h>

#endif
