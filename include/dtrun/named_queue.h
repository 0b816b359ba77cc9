#ifndef DTRUN_NAMED_QUEUE_H_
#define DTRUN_NAMED_QUEUE_H_

#include <dtrun/c.h>
#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// The lengths of a tensor along its dimensions. Empty: a scalar.
using Shape = std::vector<uint64_t>;

/// One tensor of a submission, row-major. Its memory belongs to the queue until the work is done. A
/// tensor on a GPU goes through host memory: the submission waits for the stream of the input.
struct QueuedTensor {
  std::string name;  ///< the same on all ranks; free again when the work is done
  Buffer input;      ///< the elements of this rank
  Shape shape;       ///< input.count is the product of these lengths
  /// The place of the result. Without data, the result is in place (AllReduce, Broadcast) or in
  /// memory of the work. AllGather and AllToAll need it without data: only all ranks together know
  /// the size.
  Buffer output = {};
  /// For AllToAll: the rows for each rank. Empty: the rows are dealt evenly.
  Counts splits = {};

  /// A tensor of one dimension.
  static QueuedTensor Flat(std::string name, Buffer input) {
    return {std::move(name), input, {input.count}};
  }
};

/// Submitted tensors, a barrier or a join. Any thread. If it is destroyed, the work continues.
class [[nodiscard]] NamedWork {
 public:
  /// Takes ownership of `handle`.
  explicit NamedWork(dtrun_named_work* handle) : handle_(handle) {}

  /// Advances the queue without blocking. Returns true once the work is done or has failed.
  bool Test() {
    int32_t done = 0;
    detail::Check(dtrun_named_work_test(handle_.get(), &done));
    return done != 0;
  }

  /// Blocks until the work is done, and advances the queue meanwhile. Each call throws the work's
  /// error: kMismatch, kTimeout, kUnavailable, kPeerLost.
  void Wait() { detail::Check(dtrun_named_work_wait(handle_.get())); }

  /// The place of the result of tensor `index`. Only for work that is done. Valid as long
  /// as this object.
  Buffer Result(size_t index = 0) const {
    dtrun_buffer result;
    detail::Check(dtrun_named_work_result(handle_.get(), index, &result, nullptr, nullptr));
    return detail::FromC(result);
  }
  /// The shape of the result of tensor `index`. Only for work that is done.
  Shape ResultShape(size_t index = 0) const {
    const uint64_t* shape = nullptr;
    uint64_t dimensions = 0;
    detail::Check(dtrun_named_work_result(handle_.get(), index, nullptr, &shape, &dimensions));
    return Shape(shape, shape + dimensions);
  }
  /// For an AllToAll in a process set of `size` ranks: the number of rows from each rank.
  Counts ReceivedSplits(int size, size_t index = 0) const {
    const uint64_t* splits = nullptr;
    detail::Check(dtrun_named_work_received_splits(handle_.get(), index, &splits));
    return Counts(splits, splits + size);
  }
  /// For a join: the rank of the queue that joined last.
  int LastJoined() const {
    int32_t rank = 0;
    detail::Check(dtrun_named_work_last_joined(handle_.get(), &rank));
    return rank;
  }

 private:
  std::unique_ptr<dtrun_named_work, detail::Destroyer<dtrun_named_work, dtrun_named_work_destroy>>
      handle_;
};

/// The options of a queue, the same on all ranks.
struct NamedQueueOptions {
  uint64_t batch_bytes = 4 << 20;  ///< tensors up to this size move in batches of up to this size
  /// The number of names that are announced by a number. Other names cost more bytes.
  uint64_t cache_capacity = 1024;
  /// The seconds after which this rank warns of a tensor that other ranks have not submitted. 0:
  /// the job's option.
  double stall_warning_s = 0,
         timeout_s = 0;  ///< seconds after which such a tensor fails; 0: the job's option
  std::vector<std::vector<int>> sets = {};  ///< process sets 1, 2 and so on
};

/// The options of a submission.
struct NamedOptions {
  ReduceOp op = ReduceOp::kSum;  ///< for AllReduce and ReduceScatter
  Scale scale = {};              ///< for AllReduce and ReduceScatter
  int root = 0;                  ///< for Broadcast: a rank of the queue, for any set
  int set = 0;                   ///< the process set; 0: all ranks of the queue
};

/// Collectives of tensors by name. Each rank submits its tensors in any order. A tensor is done
/// when all ranks have submitted it. Use it if the order of the tensors differs between ranks. If
/// the order is the same, a Communicator's own collectives are faster, because they need no
/// agreement.
///
///   rank 0: a = queue.AllReduce("a", x);  b = queue.AllReduce("b", y);
///   rank 1: b = queue.AllReduce("b", y);  a = queue.AllReduce("a", x);      then both wait
///
/// Several tensors of one call are a group: either all are done or all have failed. A name is free
/// again when its work is done. Any thread may submit, test and wait. Ranks that wait advance the
/// queue. An error of one tensor reaches every rank that submitted the tensor, and the queue
/// continues: see dtrun_named_submit.
class NamedQueue {
 public:
  /// The tensors of one call, which are a group.
  using Tensors = std::vector<QueuedTensor>;
  /// See dtrun_named_callback. It throws no exception.
  using Callback = void (*)(void* argument, const dtrun_named_work* work, const dtrun_error* error);

  /// Collective over the ranks of `communicator`. The queue uses duplicates of the communicator.
  explicit NamedQueue(Communicator& communicator, const NamedQueueOptions& options = {}) {
    std::vector<std::vector<int32_t>> ranks;
    for (const auto& set : options.sets) ranks.emplace_back(set.begin(), set.end());
    std::vector<dtrun_rank_list> sets;
    for (const auto& list : ranks) sets.push_back({list.data(), list.size()});
    dtrun_named_queue_options told = dtrun_default_named_queue_options();
    told.batch_bytes = options.batch_bytes;
    told.cache_capacity = options.cache_capacity;
    told.stall_warning_s = options.stall_warning_s;
    told.timeout_s = options.timeout_s;
    told.sets = sets.data();
    told.set_count = sets.size();
    dtrun_named_queue* handle = nullptr;
    detail::Check(dtrun_named_queue_create(communicator.handle(), &told, &handle));
    handle_.reset(handle);
  }

  /// The reduction of all inputs, on every rank. All ranks pass the same shapes.
  NamedWork AllReduce(const Tensors& tensors, const NamedOptions& options = {}) {
    return Submit(DTRUN_NAMED_ALL_REDUCE, tensors, options);
  }
  /// The same for one tensor of one dimension, in place.
  NamedWork AllReduce(const std::string& name, Buffer buffer, const NamedOptions& options = {}) {
    const dtrun_named_tensor tensor = {
        name.c_str(), detail::ToC(buffer), detail::ToC(Buffer()), &buffer.count, 1, nullptr};
    return Submitted(Of(DTRUN_NAMED_ALL_REDUCE, options), &tensor, 1);
  }
  /// The inputs of all ranks in rank order, along the first dimension, which may differ.
  NamedWork AllGather(const Tensors& tensors, const NamedOptions& options = {}) {
    return Submit(DTRUN_NAMED_ALL_GATHER, tensors, options);
  }
  /// The input of rank `options.root`. All ranks pass the same shapes.
  NamedWork Broadcast(const Tensors& tensors, const NamedOptions& options = {}) {
    return Submit(DTRUN_NAMED_BROADCAST, tensors, options);
  }
  /// Sends rows of the first dimension, which may differ, to every rank. The result is the rows
  /// from all ranks.
  NamedWork AllToAll(const Tensors& tensors, const NamedOptions& options = {}) {
    return Submit(DTRUN_NAMED_ALL_TO_ALL, tensors, options);
  }
  /// This rank's rows of the reduction: the first rows % p ranks get one row more. All ranks pass
  /// the same shapes.
  NamedWork ReduceScatter(const Tensors& tensors, const NamedOptions& options = {}) {
    return Submit(DTRUN_NAMED_REDUCE_SCATTER, tensors, options);
  }

  /// A barrier. It is done when every rank of the set has called it.
  NamedWork Barrier(int set = 0) {
    dtrun_named_work* work = nullptr;
    detail::Check(dtrun_named_barrier(handle_.get(), set, &work));
    return NamedWork(work);
  }
  /// Declares that this rank has nothing more to submit. It is done when all ranks of the set have
  /// joined. Until then the other ranks continue without this rank: see dtrun_named_join.
  NamedWork Join(int set = 0) {
    dtrun_named_work* work = nullptr;
    detail::Check(dtrun_named_join(handle_.get(), set, &work));
    return NamedWork(work);
  }

  /// AllReduce and so on with a callback. `kind` is one of DTRUN_NAMED_...
  NamedWork Submit(
      int32_t kind, const Tensors& tensors, const NamedOptions& options,
      Callback callback = nullptr, void* argument = nullptr) {
    dtrun_named_operation operation = Of(kind, options);
    operation.callback = callback;
    operation.argument = argument;
    std::vector<dtrun_named_tensor> list;
    list.reserve(tensors.size());
    for (const QueuedTensor& tensor : tensors) {
      if (!tensor.splits.empty()) CheckSplits(tensor, options.set);
      list.push_back(
          {tensor.name.c_str(), detail::ToC(tensor.input), detail::ToC(tensor.output),
           tensor.shape.data(), tensor.shape.size(),
           tensor.splits.empty() ? nullptr : tensor.splits.data()});
    }
    return Submitted(operation, list.data(), list.size());
  }

  /// Adds a process set and returns its number. A number is never reused. Collective over all ranks
  /// of the queue, inside or outside the set.
  int AddSet(const std::vector<int>& ranks) {
    const std::vector<int32_t> list(ranks.begin(), ranks.end());
    int32_t set = 0;
    detail::Check(dtrun_named_queue_add_set(handle_.get(), list.data(), list.size(), &set));
    return set;
  }
  /// Removes a process set. Collective. No rank has an operation under way in it.
  void RemoveSet(int set) { detail::Check(dtrun_named_queue_remove_set(handle_.get(), set)); }
  /// The numbers of all sets, in ascending order, also of sets without this rank.
  std::vector<int> Sets() const {
    size_t count = 0;
    detail::Check(dtrun_named_queue_sets(handle_.get(), nullptr, &count));
    std::vector<int32_t> sets(count);
    detail::Check(dtrun_named_queue_sets(handle_.get(), sets.data(), &count));
    return std::vector<int>(sets.begin(), sets.end());
  }
  /// The ranks of a set, in ascending order. Set 0 is all ranks.
  std::vector<int> RanksOf(int set) const {
    size_t count = 0;
    detail::Check(dtrun_named_queue_set_ranks(handle_.get(), set, nullptr, &count));
    std::vector<int32_t> ranks(count);
    detail::Check(dtrun_named_queue_set_ranks(handle_.get(), set, ranks.data(), &count));
    return std::vector<int>(ranks.begin(), ranks.end());
  }

 private:
  static dtrun_named_operation Of(int32_t kind, const NamedOptions& options) {
    dtrun_named_operation operation = dtrun_named_operation_of(kind);
    operation.reduce_op = static_cast<int32_t>(options.op);
    operation.root = options.root;
    operation.set = options.set;
    operation.scale = detail::ToC(options.scale);
    return operation;
  }

  NamedWork Submitted(
      const dtrun_named_operation& operation, const dtrun_named_tensor* tensors, size_t count) {
    dtrun_named_work* work = nullptr;
    detail::Check(dtrun_named_submit(handle_.get(), &operation, tensors, count, &work));
    return NamedWork(work);
  }

  // The C ABI reads one number per rank.
  void CheckSplits(const QueuedTensor& tensor, int set) const {
    const size_t size = RanksOf(set).size();
    if (tensor.splits.size() == size) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        "tensor '" + tensor.name + "': found " + std::to_string(tensor.splits.size()) +
            " splits; expected one for each of " + std::to_string(size) + " ranks");
  }

  std::unique_ptr<
      dtrun_named_queue, detail::Destroyer<dtrun_named_queue, dtrun_named_queue_destroy>>
      handle_;
};

}  // namespace dtrun

#endif
