/// \file
/// Named collectives: ranks submit tensors by name, in any order. A tensor is done when all ranks
/// have submitted it. <dtrun/c.h> includes this file, and its rules hold here, with one difference:
/// any thread may call any function of a queue and of its works. Sets are added and removed by one
/// thread at a time.
#ifndef DTRUN_DETAIL_C_NAMED_QUEUE_H_
#define DTRUN_DETAIL_C_NAMED_QUEUE_H_

#include <dtrun/c.h>

#ifdef __cplusplus
extern "C" {
#endif

/// A queue: collectives of tensors by name.
typedef struct dtrun_named_queue dtrun_named_queue;
/// Submitted tensors, a barrier or a join.
typedef struct dtrun_named_work dtrun_named_work;

/// The operations. p is the number of ranks of the process set. A row is the part of a tensor for
/// one index of its first dimension.
enum {
  /// The reduction of all inputs, on every rank. All ranks pass the same shapes.
  DTRUN_NAMED_ALL_REDUCE = 0,
  /// The inputs of all ranks in rank order, along the first dimension, which may differ.
  DTRUN_NAMED_ALL_GATHER = 1,
  /// The input of rank `root`. All ranks pass the same shapes.
  DTRUN_NAMED_BROADCAST = 2,
  /// Sends `splits[r]` rows to rank r, or the same number to every rank. The result is the rows
  /// from all ranks, in rank order. The first dimension may differ.
  DTRUN_NAMED_ALL_TO_ALL = 3,
  /// This rank's rows of the reduction of all inputs: the first rows % p ranks get one row more.
  /// All ranks pass the same shapes.
  DTRUN_NAMED_REDUCE_SCATTER = 4
};

/// The ranks of a process set.
typedef struct dtrun_rank_list {
  const int32_t* ranks;  ///< ranks of the queue, in any order, each once
  size_t rank_count;     ///< length of `ranks`
} dtrun_rank_list;

/// The options of a queue, the same on all ranks. Begin with `dtrun_default_named_queue_options`:
/// later versions may add members at the end.
typedef struct dtrun_named_queue_options {
  uint64_t struct_bytes;    ///< size of this struct in the calling program
  uint64_t batch_bytes;     ///< tensors up to this size move in batches of up to this size
  uint64_t cache_capacity;  ///< names that are announced by a number; others cost more bytes
  /// The seconds after which this rank warns of a tensor that other ranks have not submitted. At
  /// most 1000000. 0: the job's option.
  double stall_warning_s,
      /// The seconds after which such a tensor fails with DTRUN_TIMEOUT on the ranks that have
      /// submitted it. At most 1000000. 0: the job's option.
      timeout_s;
  /// Process sets that exist from the start, with the numbers 1, 2 and so on.
  const dtrun_rank_list* sets;
  size_t set_count;  ///< length of `sets`
} dtrun_named_queue_options;

/// 4 MiB, 1024 names, the job's time limits, no sets except the set of all ranks.
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

/// Creates a queue for the ranks of `communicator`. Collective. The queue uses duplicates of the
/// communicator. `options` NULL: the defaults.
DTRUN_API dtrun_error* dtrun_named_queue_create(
    dtrun_communicator* communicator, const dtrun_named_queue_options* options,
    dtrun_named_queue** queue);
/// Work that is under way ends with an error. Data that is already moving may still be written.
/// Works of the queue may be destroyed later.
DTRUN_API void dtrun_named_queue_destroy(dtrun_named_queue* queue);

/// Adds a process set. Set 0 is all ranks of the queue. A set has a number, the same on all ranks,
/// that is never reused. Sets progress independently of each other.
///
/// Collective over all ranks of the queue, inside or outside the set, in the same order on all
/// ranks. DTRUN_MISMATCH: the ranks pass different lists. `ranks` are ranks of the queue, in any
/// order, each once. DTRUN_DUPLICATE_SET: another set has the same ranks.
DTRUN_API dtrun_error* dtrun_named_queue_add_set(
    dtrun_named_queue* queue, const int32_t* ranks, size_t rank_count, int32_t* set);
/// Removes a process set. Collective. DTRUN_INVALID_ARGUMENT, on all ranks: the set is 0 or does
/// not exist, or a rank has work under way in it.
DTRUN_API dtrun_error* dtrun_named_queue_remove_set(dtrun_named_queue* queue, int32_t set);
/// Writes the numbers of all sets, in ascending order, also of sets without this rank. At most
/// `*set_count` numbers are written. Then `*set_count` becomes the number of sets. `sets` may be
/// NULL.
DTRUN_API dtrun_error* dtrun_named_queue_sets(
    const dtrun_named_queue* queue, int32_t* sets, size_t* set_count);
/// Writes the ranks of a set, in ascending order. Works on every rank. At most `*rank_count` ranks
/// are written. Then `*rank_count` becomes the number of ranks in the set. `ranks` may be NULL.
DTRUN_API dtrun_error* dtrun_named_queue_set_ranks(
    const dtrun_named_queue* queue, int32_t set, int32_t* ranks, size_t* rank_count);

/// One tensor, row-major, in host memory or on a GPU. Its memory belongs to the queue until the
/// work is done. All other data is copied. A tensor on a GPU goes through host memory: the
/// submission waits for the stream of the input. A result in memory of the work is in host memory.
typedef struct dtrun_named_tensor {
  const char* name;    ///< the same on all ranks; free again when the work is done
  dtrun_buffer input;  ///< the elements of this rank
  /// The place of the result. If its data is NULL, the result is in place (all_reduce, broadcast)
  /// or in memory of the work. all_gather and all_to_all need NULL: only all ranks together know
  /// the size.
  dtrun_buffer output;
  const uint64_t* shape;   ///< input.count is the product of these lengths
  uint64_t dimensions;     ///< length of `shape`; 0: a scalar
  /// For all_to_all: p numbers. Rows behind their sum are not sent. NULL: the rows are dealt evenly.
  const uint64_t* splits;
} dtrun_named_tensor;

/// A function that is called once, when the work is done, with the result of dtrun_named_work_wait.
/// It runs on any thread that advances the queue, possibly before the submission returns. `work`
/// and `error` belong to dtrun, and are valid until the function returns. The function may read
/// results and submit tensors. It must not wait.
typedef void (*dtrun_named_callback)(
    void* argument, const dtrun_named_work* work, const dtrun_error* error);

/// An operation and its options. Begin with `dtrun_named_operation_of`: later versions may add
/// members at the end.
typedef struct dtrun_named_operation {
  uint64_t struct_bytes;  ///< size of this struct in the calling program
  int32_t kind;           ///< DTRUN_NAMED_...
  /// For all_reduce and reduce_scatter: DTRUN_SUM ... DTRUN_PRODUCT, see <dtrun/c.h>. For
  /// all_reduce also DTRUN_ADASUM, if the type is f16, bf16, f32 or f64 and the number of ranks is
  /// a power of two. Then two tensors a and b become
  ///
  ///   a (1 - a.b / (2 a.a)) + b (1 - a.b / (2 b.b))       (a factor is 1 where a.a or b.b is 0)
  ///
  /// This is their sum if they are orthogonal and their mean if they are parallel. More ranks are
  /// combined in pairs, then pairs of pairs, in rank order. (S. Maleki et al., "Scaling Distributed
  /// Training with Adaptive Summation", arXiv:2006.02924.)
  ///
  /// Each tensor is combined by itself, with products and sums in f64, and is rounded once (f16 and
  /// bf16 through f32). The result has the same bits on all ranks, with any other tensors in the
  /// batch. A NaN or an infinity on any rank makes the whole tensor NaN. `scale` multiplies as in a
  /// sum.
  int32_t reduce_op;
  int32_t root;                   ///< for broadcast: a rank of the queue, for any set
  int32_t set;                    ///< the process set; 0: all ranks of the queue
  dtrun_scale scale;              ///< for all_reduce and reduce_scatter
  dtrun_named_callback callback;  ///< NULL: none
  void* argument;                 ///< passed to the callback
} dtrun_named_operation;

/// A sum without scaling, over all ranks, from rank 0, without a callback.
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

/// Submits `tensor_count` tensors under their names. Several tensors are a group: either all are
/// done or all have failed. Errors, after which nothing is submitted: DTRUN_DUPLICATE_NAME (a name
/// is under way on this rank, or twice in the group), DTRUN_NOT_IN_SET (this rank is not in the
/// set), DTRUN_INVALID_ARGUMENT (this rank has joined, or a tensor is wrong). The text names the
/// tensor, the value found and the value expected.
///
/// The wait returns the errors that only all ranks together can detect, on every rank that
/// submitted the tensor. The queue continues after them: DTRUN_MISMATCH (names the tensor and the
/// requests of the ranks), DTRUN_TIMEOUT. A timeout names the
/// tensor, the ranks that have not submitted it, and the tensor that each of them submitted last.
///
/// If a rank does not answer at all, the queue is unusable: all functions return DTRUN_TIMEOUT or
/// DTRUN_PEER_LOST.
DTRUN_API dtrun_error* dtrun_named_submit(
    dtrun_named_queue* queue, const dtrun_named_operation* operation,
    const dtrun_named_tensor* tensors, size_t tensor_count, dtrun_named_work** work);
/// A barrier. It is done when every rank of the set has called it. One at a time in a set.
DTRUN_API dtrun_error* dtrun_named_barrier(
    dtrun_named_queue* queue, int32_t set, dtrun_named_work** work);
/// Declares that this rank has nothing more to submit. It is done when all ranks of the set have
/// joined. Until then the other ranks continue without this rank: an average divides by the ranks
/// that take part, a minimum covers only them, a gather has no rows of this rank. Rows that are
/// sent to this rank are dropped. If the root of a broadcast has joined, the other ranks get
/// DTRUN_INVALID_ARGUMENT.
DTRUN_API dtrun_error* dtrun_named_join(
    dtrun_named_queue* queue, int32_t set, dtrun_named_work** work);

/// Advances the queue without blocking. `*done` becomes 1 once the work is done or has failed.
DTRUN_API dtrun_error* dtrun_named_work_test(dtrun_named_work* work, int32_t* done);
/// Blocks until the work is done, and advances the queue meanwhile. Each call returns the work's
/// error.
DTRUN_API dtrun_error* dtrun_named_work_wait(dtrun_named_work* work);
/// The place of the result of tensor `index` of the submission, and its shape. Only for work that
/// is done. Valid as long as the work. Each output pointer may be NULL.
DTRUN_API dtrun_error* dtrun_named_work_result(
    const dtrun_named_work* work, size_t index, dtrun_buffer* result, const uint64_t** shape,
    uint64_t* dimensions);
/// For an all_to_all that is done: sets `*splits` to the number of rows from each of the p ranks.
DTRUN_API dtrun_error* dtrun_named_work_received_splits(
    const dtrun_named_work* work, size_t index, const uint64_t** splits);
/// For a join that is done: the rank of the queue that joined last.
DTRUN_API dtrun_error* dtrun_named_work_last_joined(const dtrun_named_work* work, int32_t* rank);
/// Work that is not done continues, and still owns its buffers.
DTRUN_API void dtrun_named_work_destroy(dtrun_named_work* work);

#ifdef __cplusplus
}
#endif

#endif
