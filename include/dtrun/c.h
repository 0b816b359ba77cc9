/// The stable C ABI of libdtrun.so. Everything the C++ headers do, they do through these functions.
///
/// Errors: a function that can fail returns NULL for success, or a `dtrun_error` that the caller
/// destroys. Ownership: what a function hands out through its last parameter belongs to the caller,
/// who calls its `_destroy`. Destroying NULL does nothing, and no `_destroy` communicates or
/// blocks, but for that of a checkpoint manager, which waits for a disk. A context outlives
/// everything made from it. Threads: one thread at a time per communicator and what was made from
/// it; different communicators are independent. Processes: in a child that was forked after
/// dtrun_init every function that can fail does, and destroys nothing; but dtrun_shutdown does
/// nothing there.
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
typedef struct dtrun_shards dtrun_shards;
typedef struct dtrun_checkpoint_manager dtrun_checkpoint_manager;
typedef struct dtrun_checkpoint_list dtrun_checkpoint_list;
typedef struct dtrun_tensor_file dtrun_tensor_file;

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

enum {
  DTRUN_SUM = 0,
  DTRUN_AVERAGE = 1,
  DTRUN_MIN = 2,
  DTRUN_MAX = 3,
  DTRUN_PRODUCT = 4,
  DTRUN_ADASUM = 5  ///< of an all_reduce of named tensors alone: see dtrun/detail/c_named_queue.h
};

/// A typed view of memory that someone else owns.
typedef struct dtrun_buffer {
  void* data;
  uint64_t count;  ///< elements
  int32_t dtype;   ///< DTRUN_U8 ... DTRUN_BOOL
  int32_t device;  ///< -1: host memory
  void* stream;    ///< the stream that makes the data, NULL on the host
} dtrun_buffer;

/// Factors of a reduction: every input is multiplied by `before`, the result by `after`. Floats are
/// multiplied in the type that they accumulate in; integers in f64, then truncated toward zero and
/// kept inside their type. Both are finite; of bools, both are 1.
typedef struct dtrun_scale {
  double before, after;
} dtrun_scale;

/// Host memory: in a buffer that is filled in by hand, `device` is easily left at 0, a GPU.
static inline dtrun_buffer dtrun_host_buffer(void* data, uint64_t count, int32_t dtype) {
  dtrun_buffer buffer;
  buffer.data = data;
  buffer.count = count;
  buffer.dtype = dtype;
  buffer.device = -1;
  buffer.stream = NULL;
  return buffer;
}

/// Where this process stands. Hosts come in the order of the host list; cross_rank counts hosts
/// among the ranks of equal local_rank.
typedef struct dtrun_topology {
  int32_t rank, size;
  int32_t local_rank, local_size;
  int32_t cross_rank, cross_size;
} dtrun_topology;

typedef struct dtrun_option {
  const char* name;  ///< as in docs/reference/options.md, for example "bucket_bytes"
  const char* value;
} dtrun_option;

DTRUN_API int32_t dtrun_error_code(const dtrun_error* error);
DTRUN_API const char* dtrun_error_message(const dtrun_error* error);
DTRUN_API void dtrun_error_destroy(dtrun_error* error);

/// "0.1.0"
DTRUN_API const char* dtrun_version(void);

/// Whether the environment's TF_CONFIG, if there is one, describes this job: its number of tasks, the
/// place of this task, and which tasks share a host. DTRUN_INVALID_ARGUMENT says what does not fit.
DTRUN_API dtrun_error* dtrun_check_tf_config(const dtrun_context* context);

/// Makes this process a rank: collective over all processes of the job. Started by nobody, it is a
/// world of one. An option given here wins over the environment (DTRUN_BUCKET_BYTES and so on).
DTRUN_API dtrun_error* dtrun_init(
    const dtrun_option* options, size_t option_count, dtrun_context** context);
/// The same for the ranks of an MPI communicator that the caller owns; <dtrun/mpi.h> fills in the
/// first three parameters: where the MPI_Comm lies, its size, and the text of
/// MPI_Get_library_version.
DTRUN_API dtrun_error* dtrun_init_mpi(
    const void* mpi_comm, size_t mpi_comm_bytes, const char* mpi_library,
    const dtrun_option* options, size_t option_count, dtrun_context** context);
/// Collective. Afterwards only `dtrun_context_destroy` may be called on what came from this
/// context. All ranks may call dtrun_init again. If dtrun_init has initialised MPI, MPI is
/// finalised when the process ends: by exit, or a return from main.
DTRUN_API dtrun_error* dtrun_shutdown(dtrun_context* context);
/// Without a `dtrun_shutdown` before it, the job ends with an error that names this rank.
DTRUN_API void dtrun_context_destroy(dtrun_context* context);

/// One line for people and logs: version, rank, backend, threads, whether operations overlap with
/// the caller's own work (and if not, why), options. Valid as long as the context.
DTRUN_API const char* dtrun_context_description(const dtrun_context* context);
/// The value in use of an option; NULL for an unknown name. Valid as long as the context.
DTRUN_API const char* dtrun_context_option(const dtrun_context* context, const char* name);
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
/// How far this rank has come since its start: steps done, and examples that it has computed
/// itself. Two stores to memory, for `dtrun --progress` to show. Without it steps are counted by
/// the reducers' waits. Any thread.
DTRUN_API dtrun_error* dtrun_report_progress(
    dtrun_context* context, uint64_t step, uint64_t examples);
/// Collective: from here on every rank writes down what it does, in memory, 16 MiB at most; what
/// does not fit is counted and dropped. `path` is a file of rank 0, which can write it or all ranks
/// get DTRUN_SYSTEM. One timeline at a time: a second start is DTRUN_INVALID_ARGUMENT, also in a
/// job under `dtrun --timeline`.
DTRUN_API dtrun_error* dtrun_timeline_start(dtrun_context* context, const char* path);
/// Collective: rank 0 writes the timeline of all ranks since the start (JSON in the trace event
/// format of Chrome and Perfetto). Then another one may be started. dtrun_shutdown does it too.
DTRUN_API dtrun_error* dtrun_timeline_stop(dtrun_context* context);
/// GPUs that this process can use. DTRUN_UNAVAILABLE, with the reason, where there are none.
DTRUN_API dtrun_error* dtrun_cuda_device_count(int32_t* count);

DTRUN_API int32_t dtrun_communicator_rank(const dtrun_communicator* communicator);
DTRUN_API int32_t dtrun_communicator_size(const dtrun_communicator* communicator);
/// "self", "shm", "hierarchical" or "mpi". Valid as long as the communicator.
DTRUN_API const char* dtrun_communicator_backend(const dtrun_communicator* communicator);
/// What errors and records call it: "world", "world/1" (the first one made from the world),
/// "world/2:0" (a split, with its colour). Valid as long as the communicator.
DTRUN_API const char* dtrun_communicator_name(const dtrun_communicator* communicator);
/// Collective: the same ranks, with operations of its own that never interleave with the
/// original's.
DTRUN_API dtrun_error* dtrun_communicator_duplicate(
    dtrun_communicator* communicator, dtrun_communicator** duplicate);
/// Collective: one communicator for the ranks of each colour, ordered by key and then by rank here.
/// `*part` is NULL for a rank whose colour is negative.
///
///   4 ranks, colours 0 1 0 1, keys 0 0 0 -1:   ranks {0, 2} and {3, 1}
DTRUN_API dtrun_error* dtrun_communicator_split(
    dtrun_communicator* communicator, int32_t colour, int32_t key, dtrun_communicator** part);
/// Collective, for the ranks that are not listed as well: a communicator of the `rank_count`
/// different ranks in `ranks`, in this order. All ranks pass the same list; a difference is
/// DTRUN_MISMATCH. `*subset` is NULL for a rank that is not listed.
DTRUN_API dtrun_error* dtrun_communicator_subset(
    dtrun_communicator* communicator, const int32_t* ranks, size_t rank_count,
    dtrun_communicator** subset);
DTRUN_API void dtrun_communicator_destroy(dtrun_communicator* communicator);

/// Collective: zeroed memory which collectives of this communicator reduce in place, without a
/// copy, where the backend can (shm: every rank of the host maps it). Ranks may ask for different
/// sizes. Aligned to 4096 bytes.
DTRUN_API dtrun_error* dtrun_communicator_allocate(
    dtrun_communicator* communicator, uint64_t bytes, dtrun_memory** memory);
/// Collective: zeroed memory of which all ranks have the same; `bytes` is the same on all of them.
/// DTRUN_UNAVAILABLE where they do not share a host. What one rank writes and another reads is for
/// the program to order, by a barrier say.
DTRUN_API dtrun_error* dtrun_communicator_allocate_shared(
    dtrun_communicator* communicator, uint64_t bytes, dtrun_memory** memory);
DTRUN_API void* dtrun_memory_data(const dtrun_memory* memory);
DTRUN_API uint64_t dtrun_memory_bytes(const dtrun_memory* memory);
DTRUN_API void dtrun_memory_destroy(dtrun_memory* memory);

/// Collective: `*received` becomes the bytes of rank `root`, on every rank, the root too. `data`
/// and `bytes` of the other ranks are ignored.
DTRUN_API dtrun_error* dtrun_broadcast_bytes(
    dtrun_communicator* communicator, const void* data, uint64_t bytes, int32_t root,
    dtrun_memory** received);

/// Operations. Each is started by a call and finished by `dtrun_work_wait`; until then it owns the
/// buffers that it was given (tables of counts are read before the call returns). All ranks of a
/// communicator start the same collectives in the same order; many may be under way. p is the
/// number of ranks.
///
/// Counts are elements. A table of counts has one entry per rank; NULL: the same for every rank.
/// An empty buffer may have data NULL. A rank's own arguments are checked before anything is sent:
/// the start returns DTRUN_INVALID_ARGUMENT (the text names the argument, what was found and what
/// was expected) or DTRUN_UNAVAILABLE (device memory). What only all ranks together can see comes
/// from the wait on every rank: DTRUN_MISMATCH (who called what), DTRUN_PEER_LOST, DTRUN_TIMEOUT
/// (who has not come), DTRUN_SYSTEM. After DTRUN_MISMATCH the communicator goes on with the next
/// operation; after DTRUN_PEER_LOST or DTRUN_TIMEOUT destroy it.
///
/// In place means that two buffers of one call are the same memory. Where that is allowed, it is
/// said; any other overlap of an input with an output is DTRUN_INVALID_ARGUMENT. An input that is
/// not in place is not changed.
///
/// Arithmetic of all_reduce, reduce_scatter and reduce: element by element over the ranks, combined
/// in a balanced tree in rank order, 5 ranks: ((a + b) + c) + (d + e), so the result has the same
/// bits on every rank and in every run. On several hosts (backend "hierarchical") the ranks of each
/// host are combined so, then the hosts: the bits also depend on which ranks share a host. f16 and
/// bf16 accumulate in f32 and are rounded once (on several hosts: once in each host, and once at
/// the end), to nearest, ties to even. Integers wrap; their average is the wrapped sum, divided,
/// truncated toward zero. The average of floats is the sum times 1 / p. Of a NaN and another float,
/// min and max are NaN. On bools sum, max and average are "or", product and min "and". `scale`
/// NULL: none.

/// `output` becomes the reduction of all inputs, on every rank. Same counts and types everywhere.
/// In place: output.data == input.data.
///
///   inputs {1, 2} and {3, 5}, DTRUN_SUM   ->   outputs {4, 7} and {4, 7}
DTRUN_API dtrun_error* dtrun_start_all_reduce(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t reduce_op,
    const dtrun_scale* scale, dtrun_work** work);
/// `output` becomes this rank's share of the reduction of all inputs. The shares lie in rank order
/// and cover the input; `shares` (the same on all ranks) has their counts. NULL: the elements are
/// dealt, so that the first input.count % p ranks get one more. In place: the output is this rank's
/// share of the input; the rest of the input keeps its values or not.
///
///   inputs {1, 2, 3} and {4, 5, 6}, DTRUN_SUM, NULL   ->   outputs {5, 7} and {9}
DTRUN_API dtrun_error* dtrun_start_reduce_scatter(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t reduce_op,
    const dtrun_scale* scale, const uint64_t* shares, dtrun_work** work);
/// `output` becomes the reduction of all inputs on rank `root`; elsewhere it is ignored. In place:
/// output.data == input.data.
///
///   inputs {1, 2} and {3, 5}, root 1, DTRUN_SUM   ->   output of rank 1: {4, 7}
DTRUN_API dtrun_error* dtrun_start_reduce(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t root,
    int32_t reduce_op, const dtrun_scale* scale, dtrun_work** work);
/// `buffer` becomes that of rank `root` on every rank.
///
///   buffers {1, 2} and {3, 5}, root 1   ->   both {3, 5}
DTRUN_API dtrun_error* dtrun_start_broadcast(
    dtrun_communicator* communicator, dtrun_buffer buffer, int32_t root, dtrun_work** work);
/// `output` becomes the inputs of all ranks in rank order, on every rank. `receive_counts[r]` is
/// the count of rank r's input; NULL: all bring as many as this rank. In place: the input is this
/// rank's part of the output.
///
///   inputs {1, 2} and {3}, receive_counts {2, 1}   ->   both outputs {1, 2, 3}
DTRUN_API dtrun_error* dtrun_start_all_gather(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output,
    const uint64_t* receive_counts, dtrun_work** work);
/// Every rank sends a part of its input to every rank, itself too. The parts lie in the input in
/// the order of the ranks they go to, in the output in that of the ranks they come from.
/// `send_counts[r]` goes to rank r, `receive_counts[r]` comes from it: what rank a expects from
/// rank b is what b sends to a, else DTRUN_MISMATCH names the pair. Both NULL: input.count / p
/// each, without rest. Never in place.
///
///   inputs {1, 2, 3} and {4, 5}; send_counts {1, 2} and {0, 2}; receive_counts {1, 0} and {2, 2}
///   ->   outputs {1} and {2, 3, 4, 5}
DTRUN_API dtrun_error* dtrun_start_all_to_all(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output,
    const uint64_t* send_counts, const uint64_t* receive_counts, dtrun_work** work);
/// `output` becomes the inputs of all ranks in rank order, on rank `root`; elsewhere it and
/// `receive_counts` are ignored. `receive_counts[r]` is the count of rank r's input; NULL: all
/// bring as many as the root. In place: the root's input is its part of the output.
///
///   inputs {1, 2} and {3}, root 0, receive_counts {2, 1}   ->   output of rank 0: {1, 2, 3}
DTRUN_API dtrun_error* dtrun_start_gather(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t root,
    const uint64_t* receive_counts, dtrun_work** work);
/// The reverse: `output` becomes this rank's part of the input of rank `root`, in which the parts
/// lie in rank order; elsewhere `input` and `send_counts` are ignored. `send_counts[r]` is the
/// count of rank r's output; NULL: all get as many as the root. In place: the root's output is its
/// part of the input.
///
///   input of rank 0: {1, 2, 3}, root 0, send_counts {2, 1}   ->   outputs {1, 2} and {3}
DTRUN_API dtrun_error* dtrun_start_scatter(
    dtrun_communicator* communicator, dtrun_buffer input, dtrun_buffer output, int32_t root,
    const uint64_t* send_counts, dtrun_work** work);
/// Done when every rank has started it.
DTRUN_API dtrun_error* dtrun_start_barrier(dtrun_communicator* communicator, dtrun_work** work);

/// Messages. The n-th send of rank a to rank b meets the n-th receive of b from a, with the same
/// count and type (else DTRUN_MISMATCH on both). They and collectives do not wait for each other.
/// Start the sends and receives of an exchange, then wait for all of them: to wait for a send
/// before the peer has started its receive may block.
///
///   right:   both start_receive(peer), start_send(peer), then wait for the two
///   wrong:   both start_send(peer) and wait for it, then start_receive(peer)
///
/// `peer` is another rank. The buffer belongs to the send until it is done.
DTRUN_API dtrun_error* dtrun_start_send(
    dtrun_communicator* communicator, dtrun_buffer buffer, int32_t peer, dtrun_work** work);
DTRUN_API dtrun_error* dtrun_start_receive(
    dtrun_communicator* communicator, dtrun_buffer buffer, int32_t peer, dtrun_work** work);

/// How `rows` rows of `row_elements` elements are dealt to `size` ranks, as reduce_scatter deals
/// elements: the first rows % size ranks get one row more. Fills `counts[size]`, in elements.
///
///   5 rows of 10 elements, 2 ranks   ->   {30, 20}
DTRUN_API dtrun_error* dtrun_deal_rows(
    uint64_t rows, uint64_t row_elements, int32_t size, uint64_t* counts);

/// Lets the operation progress without blocking; `*done` becomes 1 once it has finished.
DTRUN_API dtrun_error* dtrun_work_test(dtrun_work* work, int32_t* done);
/// Blocks, driving progress, until the operation has finished or failed.
DTRUN_API dtrun_error* dtrun_work_wait(dtrun_work* work);
/// An unfinished operation goes on without its handle and still owns its buffer.
DTRUN_API void dtrun_work_destroy(dtrun_work* work);

/// Finishes what was started in the same line: waits, and destroys the work.
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

/// One gradient of a reducer. With `buffer.data` NULL the reducer gives it a place in its own
/// block, which is reduced without a copy; otherwise it is packed when marked and unpacked by the
/// wait, unless it is large: then it is reduced where it lies.
typedef struct dtrun_gradient {
  const char* name;
  dtrun_buffer buffer;
} dtrun_gradient;

/// Collective: all ranks pass the same names (none twice, none empty), counts and types in the same
/// order; a difference is DTRUN_MISMATCH and names the first gradient that differs. `bucket_bytes`
/// 0 means the option of that name.
///
/// An error of a reducer that is not DTRUN_INVALID_ARGUMENT breaks it: later calls return it again.
DTRUN_API dtrun_error* dtrun_reducer_create(
    dtrun_communicator* communicator, const dtrun_gradient* gradients, size_t gradient_count,
    int32_t reduce_op, uint64_t bucket_bytes, dtrun_reducer** reducer);

/// What the buckets of a reducer look like while they are reduced.
enum {
  DTRUN_WIRE_NONE = 0,  ///< as they are
  DTRUN_WIRE_F16 = 1,   ///< f32 and f64, rounded to f16; the result comes in the gradient's type
  DTRUN_WIRE_BF16 = 2   ///< likewise
};

/// A format of one's own for buckets of f32 and f64: each rank compresses its gradients, what comes
/// out is reduced element by element (with the reducer's operation and scale, in the arithmetic of
/// `dtype`), and each rank decompresses the result. Called on the thread that marks, and by the
/// wait. A function that does not return 0 has failed: its number is in the error (DTRUN_SYSTEM) of
/// the call that it was called by. This rank's reducer is then of no more use, and the other ranks
/// get DTRUN_TIMEOUT or DTRUN_PEER_LOST.
///
/// Buckets are numbered from 0. `gradients` is the bucket: gradients in a row, each followed by
/// elements up to the next 64 bytes, which are zeros unless `decompress` has written others.
typedef struct dtrun_wire_format {
  const char* name;  ///< compared between the ranks
  int32_t dtype;     ///< of an element on the wire
  int32_t reserved;  ///< 0
  void* context;     ///< handed to the functions; outlives the reducer
  /// `*wire_count` becomes the number of elements on the wire; `gradients` has no data. Called for
  /// each bucket, in their order, when the reducer is made, and again when the first step has ended
  /// and buckets have changed: what was kept for a bucket belongs to others then.
  int32_t (*count)(void* context, uint64_t bucket, dtrun_buffer gradients, uint64_t* wire_count);
  int32_t (*compress)(void* context, uint64_t bucket, dtrun_buffer gradients, dtrun_buffer wire);
  int32_t (*decompress)(void* context, uint64_t bucket, dtrun_buffer wire, dtrun_buffer gradients);
} dtrun_wire_format;

/// Gradients by their index.
typedef struct dtrun_group {
  const uint64_t* gradients;
  size_t gradient_count;
} dtrun_group;

/// What a reducer can be told. Begin with `dtrun_default_reducer_options`: later versions may add
/// members at the end.
typedef struct dtrun_reducer_options {
  uint64_t struct_bytes;  ///< of this struct, as the program was compiled with it
  int32_t reduce_op;      ///< DTRUN_SUM ... DTRUN_PRODUCT
  int32_t reserved;       ///< 0
  uint64_t bucket_bytes;  ///< 0: the option of that name
  dtrun_scale scale;      ///< of DTRUN_SUM and DTRUN_AVERAGE, each factor in [1/1024, 1024]
  /// Of the first bucket that a backward pass fills, so that the wire starts early; at most
  /// `bucket_bytes`. 0: 1 MiB, or `bucket_bytes` if that is less.
  uint64_t first_bucket_bytes;
  /// Gradients, of one type, that are reduced together: a bucket for each group, whatever its size.
  const dtrun_group* groups;
  size_t group_count;
  /// In their place: all gradients, in their order, in so many groups, as equal in number as can
  /// be; of several types, a bucket for each. 0: as `groups` says.
  uint64_t equal_groups;
  int32_t wire;  ///< DTRUN_WIRE_NONE ... DTRUN_WIRE_BF16
  /// 0: the buckets follow the order of the list for ever. Otherwise they are cut anew, once, at
  /// the end of the first wait, for the order in which rank 0 marked gradients. Their places, and
  /// which of them are alone, stay the same; so do the bits of results.
  int32_t rebuild;
  const dtrun_wire_format* wire_format;  ///< NULL: none; copied. Then `wire` is DTRUN_WIRE_NONE
} dtrun_reducer_options;

/// The average, in buckets of the default sizes, unscaled, not compressed, rebuilt once.
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

/// `dtrun_reducer_create` with all that there is to say; `options` are the same on all ranks.
DTRUN_API dtrun_error* dtrun_reducer_create_with(
    dtrun_communicator* communicator, const dtrun_gradient* gradients, size_t gradient_count,
    const dtrun_reducer_options* options, dtrun_reducer** reducer);
/// Where gradient `index` has to be written, before it is marked.
DTRUN_API dtrun_error* dtrun_reducer_gradient(
    const dtrun_reducer* reducer, size_t index, dtrun_buffer* buffer);
/// The gradient is complete: its bucket starts once all of its gradients, and the buckets before
/// it, are. Marking twice, in whatever way, before a wait is DTRUN_INVALID_ARGUMENT.
DTRUN_API dtrun_error* dtrun_reducer_mark_ready(dtrun_reducer* reducer, size_t index);
/// The same for a gradient that lies at `source` (as many elements of its type): it is copied into
/// the block, in pieces between which the buckets under way go on. The result comes to where
/// `dtrun_reducer_gradient` says; `source` is not changed.
DTRUN_API dtrun_error* dtrun_reducer_mark_ready_from(
    dtrun_reducer* reducer, size_t index, const void* source);
/// This rank has no such gradient in this step, and contributes zeros. A gradient that no rank had
/// is told from the others by `dtrun_reducer_was_used`; in memory of one's own it keeps its values.
DTRUN_API dtrun_error* dtrun_reducer_mark_unused(dtrun_reducer* reducer, size_t index);
/// Whether the gradient has a bucket of its own: it is at least as large as `bucket_bytes`, and
/// 1 MiB, and in no group with others.
DTRUN_API dtrun_error* dtrun_reducer_is_alone(
    const dtrun_reducer* reducer, size_t index, int32_t* alone);
/// For gradients that have a bucket of their own. The gradient is complete: it is reduced, and its
/// result comes to, `place`, in this step: the place of any gradient of its size in the block,
/// which no other uses in this step, or the caller's own memory, which is slower. Copied there from
/// `source` (as many elements of its type) unless that is `place`.
DTRUN_API dtrun_error* dtrun_reducer_mark_ready_at(
    dtrun_reducer* reducer, size_t index, const void* source, void* place);
/// The same for a gradient that this rank does not have: zeros are written to `place`.
DTRUN_API dtrun_error* dtrun_reducer_mark_unused_at(
    dtrun_reducer* reducer, size_t index, void* place);
/// Of the last wait, until the gradient is marked again: `*used` is 0 if every rank marked it
/// unused, the same on all ranks. It costs no operation: the flags are a part of the last bucket.
DTRUN_API dtrun_error* dtrun_reducer_was_used(
    const dtrun_reducer* reducer, size_t index, int32_t* used);
/// Reduces what has not been marked as well, and returns when every gradient holds the result on
/// this rank.
DTRUN_API dtrun_error* dtrun_reducer_wait(dtrun_reducer* reducer);

/// Where the time of steps went on this rank. A step lasts from the end of a wait to the end of the
/// next; the first one begins with the reducer. Begin with `dtrun_new_step_statistics`: later
/// versions may add members at the end.
typedef struct dtrun_step_statistics {
  uint64_t struct_bytes;  ///< of this struct, as the program was compiled with it
  uint64_t steps;
  double total_s;    ///< seconds
  double exposed_s;  ///< of it, in the reducer: not hidden behind what the trainer computes
  double late_s;     ///< of that, waiting for ranks that were not there yet
  uint64_t bytes;    ///< that were reduced, padding included
  uint64_t buckets;  ///< collectives that did it
} dtrun_step_statistics;

static inline dtrun_step_statistics dtrun_new_step_statistics(void) {
  dtrun_step_statistics statistics;
  statistics.struct_bytes = sizeof(dtrun_step_statistics);
  statistics.steps = 0;
  statistics.total_s = statistics.exposed_s = statistics.late_s = 0;
  statistics.bytes = statistics.buckets = 0;
  return statistics;
}

/// Of the last step, and of all steps together; either may be NULL. It costs a step a few looks at
/// the clock, so it is always there: marks that neither start a bucket, nor move one that is under
/// way, nor copy 64 KiB are not timed.
DTRUN_API dtrun_error* dtrun_reducer_statistics(
    const dtrun_reducer* reducer, dtrun_step_statistics* last, dtrun_step_statistics* total);
/// Of all steps: `seconds[r]` of `late_s` in which rank r of the communicator was seen missing, for
/// the first `count` ranks. Several may be missing at a time.
DTRUN_API dtrun_error* dtrun_reducer_late_ranks(
    const dtrun_reducer* reducer, double* seconds, size_t count);
DTRUN_API void dtrun_reducer_destroy(dtrun_reducer* reducer);

/// Sharded parameters: gradients, values and the optimizer's state of a model, of which each rank
/// updates a share and keeps the state of that share alone. Gradients and values lie in memory that
/// dtrun gives; ranks of one host reduce, update and share out in one pass over it.
typedef struct dtrun_sharded_parameter {
  const char* name;
  dtrun_buffer value;  ///< where the values are before; its gradient has the same count and type
} dtrun_sharded_parameter;

/// Begin with `dtrun_default_shards_options`: later versions may add members at the end.
typedef struct dtrun_shards_options {
  uint64_t struct_bytes;       ///< of this struct, as the program was compiled with it
  int32_t reduce_op;           ///< DTRUN_AVERAGE or DTRUN_SUM
  int32_t one_copy_per_host;   ///< 1: the ranks of a host have the same values in one memory
  uint64_t bucket_bytes;       ///< 0: the option of that name; of no use within one host
  uint64_t slot_count;         ///< pieces of state that each element has
  const int32_t* slot_dtypes;  ///< of each: DTRUN_U8 ... DTRUN_BOOL, or -1, the parameter's own
} dtrun_shards_options;

/// The average, a copy for every rank, no state.
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

/// Elements [first, first + count) of a parameter that are to be updated. The pointers point to the
/// first of them.
typedef struct dtrun_parameter_slice {
  uint64_t parameter;  ///< index
  uint64_t first, count;
  const void* gradient;  ///< reduced
  void* value;
  void* const* slots;  ///< by slot; zeros in the first step
} dtrun_parameter_slice;

/// Updates the elements of a slice. It calls nothing of dtrun and throws nothing.
typedef void (*dtrun_update_function)(void* argument, const dtrun_parameter_slice* slice);

/// Collective: all ranks pass the same names, counts, types and options; a difference is
/// DTRUN_MISMATCH and names the first parameter that differs. The values of rank 0 become those of
/// all ranks. With one copy per host shared memory connects the ranks of each host, else
/// DTRUN_UNAVAILABLE; the pages where the values were go back to the system, and what stands there
/// is unspecified until the program writes it.
DTRUN_API dtrun_error* dtrun_shards_create(
    dtrun_communicator* communicator, const dtrun_sharded_parameter* parameters,
    size_t parameter_count, const dtrun_shards_options* options, dtrun_shards** shards);
/// Where gradient `index` has to be written, before it is marked; and where the values are from now
/// on.
DTRUN_API dtrun_error* dtrun_shards_gradient(
    const dtrun_shards* shards, size_t index, dtrun_buffer* buffer);
DTRUN_API dtrun_error* dtrun_shards_value(
    const dtrun_shards* shards, size_t index, dtrun_buffer* buffer);
/// The gradient is complete, and not touched before the step has ended: between hosts its reduction
/// may start. Marking twice before a step is DTRUN_INVALID_ARGUMENT.
DTRUN_API dtrun_error* dtrun_shards_mark_ready(dtrun_shards* shards, size_t index);
/// Collective, before a step that needs norms: completes the reduction, of what was not marked as
/// well, and fills `gradients[n]` and `values[n]` with the sums of squares of each of the n
/// parameters, the same on all ranks. They are f32 or f64. `values` may be NULL, on all ranks.
DTRUN_API dtrun_error* dtrun_shards_squared_norms(
    dtrun_shards* shards, double* gradients, double* values);
/// Collective: reduces what is not reduced, and calls `update` on this thread for slices of this
/// rank's share, in any order, each element once, with gradients that are multiplied by `factor`.
/// When it returns, the values come to this rank: dtrun_shards_wait_for waits for them.
DTRUN_API dtrun_error* dtrun_shards_step(
    dtrun_shards* shards, double factor, dtrun_update_function update, void* argument);

/// SGD with momentum in one formula, for each element:
///
///   g     = gradient + decay * value
///   m     = keep * m + take * g                       m: state slot 0
///   value = value + by_momentum * m + by_gradient * g
///
/// Classic momentum: keep, take = 1, by_momentum = -rate. Keras writes it with take = -rate and
/// by_momentum = 1. Nesterov's: by_momentum = -rate * keep, by_gradient = -rate. Without a slot
/// there is no m. Begin with `dtrun_default_momentum_step`.
typedef struct dtrun_momentum_step {
  uint64_t struct_bytes;  ///< of this struct, as the program was compiled with it
  double keep, take, decay, by_momentum, by_gradient;
  const uint8_t* frozen;  ///< by parameter: not 0: left as it is; NULL: none is
} dtrun_momentum_step;

/// Nothing moves.
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

/// Collective: dtrun_shards_step with this update, which dtrun computes itself, in the very pass
/// over memory that reduces: faster than any function that is called for slices. Parameters and
/// state are f32, with at most one slot, else DTRUN_INVALID_ARGUMENT.
DTRUN_API dtrun_error* dtrun_shards_step_momentum(
    dtrun_shards* shards, double factor, const dtrun_momentum_step* step);
/// Returns when parameter `index` holds the values of the last step.
DTRUN_API dtrun_error* dtrun_shards_wait_for(dtrun_shards* shards, size_t index);
/// Collective: the whole of state `slot` of parameter `index`, as many elements as it has, comes to
/// `output` on rank `root`, or on all ranks if that is -1.
DTRUN_API dtrun_error* dtrun_shards_gather_state(
    dtrun_shards* shards, size_t slot, size_t index, int32_t root, void* output);
/// The other way round, on this rank alone: takes its share from the whole at `input`. The number
/// of ranks may be another one than when the state was gathered.
DTRUN_API dtrun_error* dtrun_shards_set_state(
    dtrun_shards* shards, size_t slot, size_t index, const void* input);
/// Of the last step, and of all steps together, as dtrun_reducer_statistics; either may be NULL.
DTRUN_API dtrun_error* dtrun_shards_statistics(
    const dtrun_shards* shards, dtrun_step_statistics* last, dtrun_step_statistics* total);
DTRUN_API void dtrun_shards_destroy(dtrun_shards* shards);

/// A named array in host memory, row-major.
typedef struct dtrun_tensor {
  const char* name;  ///< UTF-8; not empty, and not "__metadata__"
  dtrun_buffer buffer;
  const uint64_t* shape;  ///< whose product is buffer.count
  uint64_t dimensions;    ///< of shape; 0: a scalar
} dtrun_tensor;

/// A remark that is saved with tensors, in UTF-8. Keys that begin with "dtrun." are dtrun's own.
typedef struct dtrun_metadata {
  const char* key;
  const char* value;
} dtrun_metadata;

/// One file in the safetensors format, by one process alone. It is written under a temporary name,
/// flushed to the disk and then renamed: after any failure `path` is what it was before.
/// DTRUN_INVALID_ARGUMENT: a tensor (its name twice, a shape that does not fit its count);
/// DTRUN_SYSTEM: the file, and why. Any thread.
DTRUN_API dtrun_error* dtrun_save_tensors(
    const char* path, const dtrun_tensor* tensors, size_t tensor_count,
    const dtrun_metadata* metadata, size_t metadata_count);
/// Reads such a file, whoever wrote it, and checks all of it: the rules of the format and, where
/// dtrun has written the file, the checksums. DTRUN_INVALID_ARGUMENT: it breaks a rule, or a byte
/// has changed; DTRUN_UNAVAILABLE: it has a type of elements that dtrun has not; DTRUN_SYSTEM: it
/// cannot be read. Any thread.
DTRUN_API dtrun_error* dtrun_load_tensors(const char* path, dtrun_tensor_file** file);
DTRUN_API size_t dtrun_tensor_file_count(const dtrun_tensor_file* file);
/// In the order of their names. What they point to belongs to the file, and is aligned to the size
/// of its elements. NULL when `index` is out of range.
DTRUN_API const dtrun_tensor* dtrun_tensor_file_tensor(const dtrun_tensor_file* file, size_t index);
DTRUN_API size_t dtrun_tensor_file_metadata_count(const dtrun_tensor_file* file);
/// In the order of their keys, without dtrun's own. NULL when `index` is out of range.
DTRUN_API const dtrun_metadata* dtrun_tensor_file_metadata(
    const dtrun_tensor_file* file, size_t index);
DTRUN_API void dtrun_tensor_file_destroy(dtrun_tensor_file* file);

/// Which of two checkpoints is the better one, by the value that they were saved with.
enum { DTRUN_BEST_NONE = 0, DTRUN_BEST_LOWEST = 1, DTRUN_BEST_HIGHEST = 2 };

/// Begin with `dtrun_default_checkpoint_options`: later versions may add members at the end.
typedef struct dtrun_checkpoint_options {
  uint64_t struct_bytes;  ///< of this struct, as the program was compiled with it
  uint64_t max_to_keep;   ///< of the newest checkpoints; 0: all
  int32_t best;           ///< DTRUN_BEST_...: this one is kept besides
  int32_t sharded;        ///< 1: every rank writes a part of the bytes, into a folder they share
  int32_t read_only;      ///< 1: nothing is written and no lock taken
  int32_t reserved;       ///< 0
} dtrun_checkpoint_options;

/// All are kept; rank 0 writes.
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

/// Begin with `dtrun_default_save_options`: later versions may add members at the end.
typedef struct dtrun_save_options {
  uint64_t struct_bytes;  ///< of this struct, as the program was compiled with it
  /// A file name: no '/', no '.' in front, not "latest" or "best". The checkpoint of that name is
  /// replaced at the moment when the new one is complete. NULL: "ckpt_<step>".
  const char* name;
  uint64_t step;
  double value;       ///< finite
  int32_t has_value;  ///< 1: `value` counts
  /// 1: the call returns when the tensors are copied, and a thread of its own writes.
  int32_t asynchronous;
  const dtrun_metadata* metadata;
  uint64_t metadata_count;
} dtrun_save_options;

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

/// Begin with `dtrun_default_load_options`: later versions may add members at the end.
typedef struct dtrun_load_options {
  uint64_t struct_bytes;     ///< of this struct, as the program was compiled with it
  const char* name;          ///< this checkpoint and no other; NULL: the newest valid one
  int32_t best;              ///< 1: by value instead of by age
  int32_t allow_unexpected;  ///< 1: the checkpoint may have tensors that are not asked for
} dtrun_load_options;

static inline dtrun_load_options dtrun_default_load_options(void) {
  dtrun_load_options options;
  options.struct_bytes = sizeof(dtrun_load_options);
  options.name = NULL;
  options.best = 0;
  options.allow_unexpected = 0;
  return options;
}

/// What is known of a checkpoint. All of it belongs to the list that it is in.
typedef struct dtrun_checkpoint {
  const char* name;
  const char* path;     ///< of its folder
  const char* refused;  ///< why it is not valid, in a sentence; NULL: nothing is known against it
  uint64_t step;
  double value;
  int32_t has_value;
  int32_t reserved;
  uint64_t bytes;  ///< of its files
  const dtrun_metadata* metadata;
  uint64_t metadata_count;
} dtrun_checkpoint;

/// The checkpoints of a job in one folder, which is made if it is missing. Collective, like all
/// functions of a manager but destroy; every rank gets the same error. While it exists no other
/// manager writes there: DTRUN_UNAVAILABLE names the host and process that does. What a job that
/// was killed has left unfinished is removed.
DTRUN_API dtrun_error* dtrun_checkpoint_manager_create(
    dtrun_communicator* communicator, const char* folder, const dtrun_checkpoint_options* options,
    dtrun_checkpoint_manager** manager);
/// Saves tensors, which have the same names, types and shapes on all ranks: the values of rank 0,
/// or, when sharded, of each rank for its part. When it returns without an error (asynchronous:
/// when a later wait does), the checkpoint is on the disk, whatever happens to the processes then.
/// After an error the folder has the checkpoints that it had. One is under way at a time: waits for
/// the one before, and if that failed returns its error and saves nothing.
DTRUN_API dtrun_error* dtrun_checkpoint_manager_save(
    dtrun_checkpoint_manager* manager, const dtrun_tensor* tensors, size_t tensor_count,
    const dtrun_save_options* options);
/// Returns when nothing is under way, with the error of what was.
DTRUN_API dtrun_error* dtrun_checkpoint_manager_wait(dtrun_checkpoint_manager* manager);
/// The checkpoints, oldest first; of their files no more is looked at than that they are there.
DTRUN_API dtrun_error* dtrun_checkpoint_manager_list(
    dtrun_checkpoint_manager* manager, dtrun_checkpoint_list** list);
/// Fills the buffers, on all ranks, from a checkpoint of any number of ranks: rank 0 reads. The
/// last of `*list` is the checkpoint that was loaded; before it come those that would have been
/// preferred and are not valid, which rank 0 also says on stderr. An empty list: there is no
/// checkpoint. Everything is checked before a buffer is touched: all of them are filled or none.
/// DTRUN_INVALID_ARGUMENT: the checkpoint is one of another model (it lists tensors that are
/// missing, unexpected, or have another type or shape), or none of those that there are is valid.
DTRUN_API dtrun_error* dtrun_checkpoint_manager_load(
    dtrun_checkpoint_manager* manager, const dtrun_tensor* tensors, size_t tensor_count,
    const dtrun_load_options* options, dtrun_checkpoint_list** list);
/// Waits until this rank's thread has written what is under way. It is not collective, and what
/// went wrong is lost: call wait first.
DTRUN_API void dtrun_checkpoint_manager_destroy(dtrun_checkpoint_manager* manager);
DTRUN_API size_t dtrun_checkpoint_list_count(const dtrun_checkpoint_list* list);
/// NULL when `index` is out of range.
DTRUN_API const dtrun_checkpoint* dtrun_checkpoint_list_at(
    const dtrun_checkpoint_list* list, size_t index);
DTRUN_API void dtrun_checkpoint_list_destroy(dtrun_checkpoint_list* list);

#ifdef __cplusplus
}
#endif

#include <dtrun/detail/c_device.h>
#include <dtrun/detail/c_named_queue.h>
#include <dtrun/detail/c_parameter_server.h>

#endif
