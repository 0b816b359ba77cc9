/// Named collectives: tensors are submitted by name, in any order on each rank, and done when all
/// ranks have submitted them. A part of <dtrun/c.h>, which includes it; its rules hold here. The
/// one difference: any thread may call any function of a queue and of what was made from it, but
/// sets are added and removed by one thread at a time.
#ifndef DTRUN_DETAIL_C_NAMED_QUEUE_H_
#define DTRUN_DETAIL_C_NAMED_QUEUE_H_

#include <dtrun/c.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dtrun_named_queue dtrun_named_queue;
typedef struct dtrun_named_work dtrun_named_work;

/// p is the number of ranks of the process set; a row is what a tensor has for one value of its
/// first dimension.
enum {
  /// The result is the reduction of all inputs, on every rank. Same shapes.
  DTRUN_NAMED_ALL_REDUCE = 0,
  /// The inputs of all ranks in rank order, along the first dimension, which may differ.
  DTRUN_NAMED_ALL_GATHER = 1,
  /// The input of rank `root`. Same shapes.
  DTRUN_NAMED_BROADCAST = 2,
  /// Rows go to every rank: `splits[r]` of them to rank r, or as many to each. The result is what
  /// came, in rank order; the first dimension may differ.
  DTRUN_NAMED_ALL_TO_ALL = 3,
  /// This rank's rows of the reduction of all inputs: the first rows % p ranks get one row more.
  /// Same shapes.
  DTRUN_NAMED_REDUCE_SCATTER = 4
};

typedef struct dtrun_rank_list {
  const int32_t* ranks;
  size_t rank_count;
} dtrun_rank_list;

/// Begin with `dtrun_default_named_queue_options`: later versions may add members at the end. The
/// same on all ranks.
typedef struct dtrun_named_queue_options {
  uint64_t struct_bytes;    ///< of this struct, as the program was compiled with it
  uint64_t batch_bytes;     ///< tensors up to this size move together, up to this size in all
  uint64_t cache_capacity;  ///< names that are announced by a number; others cost more bytes
  /// How long a tensor waits for ranks that do not submit it before this rank says so, and before
  /// it fails with DTRUN_TIMEOUT on the ranks that have submitted it. 0: the job's options.
  double stall_warning_s, timeout_s;
  /// Process sets that are there from the start, with the numbers 1, 2 and so on.
  const dtrun_rank_list* sets;
  size_t set_count;
} dtrun_named_queue_options;

/// 4 MiB, 1024 names, the job's times, no sets but that of all ranks.
static inline dtrun_named_queue_options dtrun_default_named_queue_options(void) {
  dtrun_named_queue_options options;
  options.struct_bytes = sizeof(dtrun_named_queue_options);
  options.batch_bytes = 4 << 20;
  options.cache_capacity = 1024;
  options.stall_warning_s = 0;
  options.timeout_s = 0;
  options.sets = NULL;
  options.set_count = 0;
  return options;
}

/// Collective: a queue for the ranks of `communicator`, of which it takes duplicates. `options`
/// NULL: the defaults.
DTRUN_API dtrun_error* dtrun_named_queue_create(
    dtrun_communicator* communicator, const dtrun_named_queue_options* options,
    dtrun_named_queue** queue);
/// What is under way ends with an error, but data that moves already may still be written. Works
/// made from the queue may be destroyed later.
DTRUN_API void dtrun_named_queue_destroy(dtrun_named_queue* queue);

/// Process sets. Set 0 is all ranks of the queue. A set has a number, the same on all ranks, that
/// is never given to another one. Sets make progress side by side, and cost the steps of others
/// nothing.
///
/// Collective over the queue, for ranks outside the set as well, in the same order everywhere: what
/// ranks name differently is DTRUN_MISMATCH. Ranks are those of the queue, in any order, each once;
/// another set with the same ranks is DTRUN_INVALID_ARGUMENT.
DTRUN_API dtrun_error* dtrun_named_queue_add_set(
    dtrun_named_queue* queue, const int32_t* ranks, size_t rank_count, int32_t* set);
/// Collective. DTRUN_INVALID_ARGUMENT, on all ranks: it is set 0, does not exist, or some rank has
/// something under way in it.
DTRUN_API dtrun_error* dtrun_named_queue_remove_set(dtrun_named_queue* queue, int32_t set);
/// Its ranks, in ascending order, on every rank. The first `*rank_count` are written, and that
/// becomes their number; `ranks` may be NULL.
DTRUN_API dtrun_error* dtrun_named_queue_set_ranks(
    const dtrun_named_queue* queue, int32_t set, int32_t* ranks, size_t* rank_count);

/// One tensor, in host memory, row-major. Its memory belongs to the queue until the work is done;
/// everything else is copied.
typedef struct dtrun_named_tensor {
  const char* name;
  dtrun_buffer input;
  /// Where the result goes; data NULL: in place (all_reduce, broadcast), or memory of the work's.
  /// Of all_gather and all_to_all it is NULL: only the ranks together know its size.
  dtrun_buffer output;
  const uint64_t* shape;   ///< whose product is input.count
  uint64_t dimensions;     ///< of shape; 0: a scalar
  const uint64_t* splits;  ///< of all_to_all: p numbers; NULL: the rows are dealt evenly
} dtrun_named_tensor;

/// Called once, when the work is done, with what dtrun_named_work_wait would return, on whichever
/// thread drives progress then, perhaps before the submission returns. `work` and `error` are
/// dtrun's, and there until it returns. It may read results and submit; it must not wait.
typedef void (*dtrun_named_callback)(
    void* argument, const dtrun_named_work* work, const dtrun_error* error);

/// Begin with `dtrun_named_operation_of`: later versions may add members at the end.
typedef struct dtrun_named_operation {
  uint64_t struct_bytes;  ///< of this struct, as the program was compiled with it
  int32_t kind;           ///< DTRUN_NAMED_...
  /// Of all_reduce and reduce_scatter: DTRUN_SUM ... DTRUN_PRODUCT, see <dtrun/c.h>. Of all_reduce
  /// also DTRUN_ADASUM, for f16, bf16, f32 and f64 on a number of ranks that is a power of two:
  /// two tensors a and b become
  ///
  ///   a (1 - a.b / (2 a.a)) + b (1 - a.b / (2 b.b))       (a factor is 1 where a.a or b.b is 0)
  ///
  /// which is their sum where they are orthogonal and their mean where they are parallel, and more
  /// ranks are combined in pairs, these in pairs again, in rank order. (S. Maleki et al., "Scaling
  /// Distributed Training with Adaptive Summation", arXiv:2006.02924.) Products and sums are in
  /// f64, over each tensor by itself, and the result is rounded once (of f16 and bf16 by way of
  /// f32): it has the same bits on all ranks, in whatever company a tensor moves. A NaN or an
  /// infinity on any rank makes the whole of its tensor NaN. `scale` multiplies as in a sum.
  int32_t reduce_op;
  int32_t root;  ///< of broadcast: a rank of the queue, in whatever set
  int32_t set;
  dtrun_scale scale;              ///< of all_reduce and reduce_scatter
  dtrun_named_callback callback;  ///< NULL: none
  void* argument;                 ///< of the callback
} dtrun_named_operation;

/// Sums, unscaled, of all ranks, from rank 0, without a callback.
static inline dtrun_named_operation dtrun_named_operation_of(int32_t kind) {
  dtrun_named_operation operation;
  operation.struct_bytes = sizeof(dtrun_named_operation);
  operation.kind = kind;
  operation.reduce_op = DTRUN_SUM;
  operation.root = 0;
  operation.set = 0;
  operation.scale.before = 1;
  operation.scale.after = 1;
  operation.callback = NULL;
  operation.argument = NULL;
  return operation;
}

/// Submits `tensor_count` tensors under their names. Several are a group: done as one, or failed as
/// one. DTRUN_INVALID_ARGUMENT, and nothing is submitted: a name is under way on this rank, this
/// rank is not in the set or has joined, or a tensor (the text names it, what was found and what
/// was expected).
///
/// What only all ranks together can see comes from the wait, on every rank that submitted it, and
/// the queue goes on: DTRUN_MISMATCH (names the tensor and who asked for what), DTRUN_TIMEOUT
/// (names the tensor, who has not submitted it, and what each of these submitted last),
/// DTRUN_UNAVAILABLE (device memory). When a rank does not answer at all, the queue has come to its
/// end: DTRUN_TIMEOUT or DTRUN_PEER_LOST from everything.
DTRUN_API dtrun_error* dtrun_named_submit(
    dtrun_named_queue* queue, const dtrun_named_operation* operation,
    const dtrun_named_tensor* tensors, size_t tensor_count, dtrun_named_work** work);
/// Done when every rank of the set has called it. One at a time in a set.
DTRUN_API dtrun_error* dtrun_named_barrier(
    dtrun_named_queue* queue, int32_t set, dtrun_named_work** work);
/// This rank has nothing more to submit: done when that is true of all ranks of the set. Until then
/// what the others submit goes on without it: an average divides by the ranks that take part, a
/// minimum is theirs, a gather has no rows of this rank, and so on. What it is sent is dropped. A
/// broadcast whose root has joined is DTRUN_INVALID_ARGUMENT on the others.
DTRUN_API dtrun_error* dtrun_named_join(
    dtrun_named_queue* queue, int32_t set, dtrun_named_work** work);

/// Lets the queue progress without blocking; `*done` becomes 1 once the work is done or has failed.
DTRUN_API dtrun_error* dtrun_named_work_test(dtrun_named_work* work, int32_t* done);
/// Blocks, driving progress, until the work is done; returns its error, each time.
DTRUN_API dtrun_error* dtrun_named_work_wait(dtrun_named_work* work);
/// Of work that is done. Where the result of tensor `index` of the submission lies, and its shape;
/// valid as long as the work. A pointer that is not wanted may be NULL.
DTRUN_API dtrun_error* dtrun_named_work_result(
    const dtrun_named_work* work, size_t index, dtrun_buffer* result, const uint64_t** shape,
    uint64_t* dimensions);
/// Of an all_to_all that is done: `*splits` becomes the rows that came from each of the p ranks.
DTRUN_API dtrun_error* dtrun_named_work_received_splits(
    const dtrun_named_work* work, size_t index, const uint64_t** splits);
/// Of a join that is done: the rank of the queue that was the last to join.
DTRUN_API dtrun_error* dtrun_named_work_last_joined(const dtrun_named_work* work, int32_t* rank);
/// Work that is not done goes on, and still owns its buffers.
DTRUN_API void dtrun_named_work_destroy(dtrun_named_work* work);

#ifdef __cplusplus
}
#endif

#endif
