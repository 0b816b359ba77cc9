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

/// Lengths of a tensor along its dimensions; none: a scalar.
using Shape = std::vector<uint64_t>;

/// One tensor of a submission, in host memory, row-major. Its memory belongs to the queue until the
/// work is done.
struct QueuedTensor {
  std::string name;
  Buffer input;
  Shape shape;  ///< whose product is input.count
  /// Where the result goes. Without data: in place (AllReduce, Broadcast), or memory of the work's.
  /// Of AllGather and AllToAll without data: only the ranks together know its size.
  Buffer output = {};
  /// Of AllToAll: rows to each rank; empty: the rows are dealt evenly.
  Counts splits = {};

  /// One dimension.
  static QueuedTensor Flat(std::string name, Buffer input) {
    return {std::move(name), input, {input.count}};
  }
};

/// Submitted tensors, a barrier or a join. Any thread. Destroying it lets the work go on.
class [[nodiscard]] NamedWork {
 public:
  explicit NamedWork(dtrun_named_work* handle) : handle_(handle) {}

  /// Lets the queue progress without blocking; true once the work is done or has failed.
  bool Test() {
    int32_t done = 0;
    detail::Check(dtrun_named_work_test(handle_.get(), &done));
    return done != 0;
  }

  /// Blocks, driving progress, until the work is done. Throws its error, each time: kMismatch,
  /// kTimeout, kUnavailable, kPeerLost.
  void Wait() { detail::Check(dtrun_named_work_wait(handle_.get())); }

  /// Of work that is done: where the result of tensor `index` lies, and its shape. Valid as long as
  /// this object.
  Buffer Result(size_t index = 0) const {
    dtrun_buffer result;
    detail::Check(dtrun_named_work_result(handle_.get(), index, &result, nullptr, nullptr));
    return detail::FromC(result);
  }
  Shape ResultShape(size_t index = 0) const {
    const uint64_t* shape = nullptr;
    uint64_t dimensions = 0;
    detail::Check(dtrun_named_work_result(handle_.get(), index, nullptr, &shape, &dimensions));
    return Shape(shape, shape + dimensions);
  }
  /// Of an AllToAll in a process set of `size` ranks: the rows that came from each.
  Counts ReceivedSplits(int size, size_t index = 0) const {
    const uint64_t* splits = nullptr;
    detail::Check(dtrun_named_work_received_splits(handle_.get(), index, &splits));
    return Counts(splits, splits + size);
  }
  /// Of a join: the rank of the queue that was the last to join.
  int LastJoined() const {
    int32_t rank = 0;
    detail::Check(dtrun_named_work_last_joined(handle_.get(), &rank));
    return rank;
  }

 private:
  std::unique_ptr<dtrun_named_work, detail::Destroyer<dtrun_named_work, dtrun_named_work_destroy>>
      handle_;
};

/// See dtrun_named_queue_options.
struct NamedQueueOptions {
  uint64_t batch_bytes = 4 << 20;
  uint64_t cache_capacity = 1024;
  double stall_warning_s = 0, timeout_s = 0;  ///< 0: the job's options
  std::vector<std::vector<int>> sets = {};    ///< process sets 1, 2 and so on
};

/// What is to be done with the tensors of a submission, other than by default.
struct NamedOptions {
  ReduceOp op = ReduceOp::kSum;  ///< of AllReduce and ReduceScatter
  Scale scale = {};              ///< likewise
  int root = 0;                  ///< of Broadcast: a rank of the queue, in whatever set
  int set = 0;
};

/// Collectives of tensors by name. Every rank submits its tensors in the order in which it has
/// them, and each is done when all ranks have submitted it: for graphs whose order is not the same
/// everywhere. Where it is, a Communicator's own collectives need no agreement and are quicker.
///
///   rank 0: a = queue.AllReduce("a", x);  b = queue.AllReduce("b", y);
///   rank 1: b = queue.AllReduce("b", y);  a = queue.AllReduce("a", x);      then both wait
///
/// Several tensors of one call are a group: done as one, or failed as one. A name is free again
/// when its work is done. Any thread may submit, test and wait; ranks that wait drive progress.
/// Errors of one tensor reach every rank that submitted it, and the queue goes on: see
/// dtrun_named_submit.
class NamedQueue {
 public:
  using Tensors = std::vector<QueuedTensor>;
  /// See dtrun_named_callback. It throws nothing.
  using Callback = void (*)(void* argument, const dtrun_named_work* work, const dtrun_error* error);

  /// Collective over the ranks of `communicator`, of which it takes duplicates.
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

  /// The reduction of all inputs, on every rank. Same shapes.
  NamedWork AllReduce(const Tensors& tensors, const NamedOptions& options = {}) {
    return Submit(DTRUN_NAMED_ALL_REDUCE, tensors, options);
  }
  NamedWork AllReduce(const std::string& name, Buffer buffer, const NamedOptions& options = {}) {
    const dtrun_named_tensor tensor = {
        name.c_str(), detail::ToC(buffer), detail::ToC(Buffer()), &buffer.count, 1, nullptr};
    return Submitted(Of(DTRUN_NAMED_ALL_REDUCE, options), &tensor, 1);
  }
  /// The inputs of all ranks in rank order, along the first dimension, which may differ.
  NamedWork AllGather(const Tensors& tensors, const NamedOptions& options = {}) {
    return Submit(DTRUN_NAMED_ALL_GATHER, tensors, options);
  }
  /// The input of rank `options.root`. Same shapes.
  NamedWork Broadcast(const Tensors& tensors, const NamedOptions& options = {}) {
    return Submit(DTRUN_NAMED_BROADCAST, tensors, options);
  }
  /// Rows of the first dimension, which may differ, go to every rank; the result is what came.
  NamedWork AllToAll(const Tensors& tensors, const NamedOptions& options = {}) {
    return Submit(DTRUN_NAMED_ALL_TO_ALL, tensors, options);
  }
  /// This rank's rows of the reduction: the first rows % p ranks get one more. Same shapes.
  NamedWork ReduceScatter(const Tensors& tensors, const NamedOptions& options = {}) {
    return Submit(DTRUN_NAMED_REDUCE_SCATTER, tensors, options);
  }

  /// Done when every rank of the set has called it.
  NamedWork Barrier(int set = 0) {
    dtrun_named_work* work = nullptr;
    detail::Check(dtrun_named_barrier(handle_.get(), set, &work));
    return NamedWork(work);
  }
  /// This rank has nothing more to submit; done when that is true of all ranks of the set. Until
  /// then the others go on without it: see dtrun_named_join.
  NamedWork Join(int set = 0) {
    dtrun_named_work* work = nullptr;
    detail::Check(dtrun_named_join(handle_.get(), set, &work));
    return NamedWork(work);
  }

  /// AllReduce and so on with a callback: `kind` is DTRUN_NAMED_...
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

  /// Collective over the queue, also for ranks outside the set: returns its number, which no other
  /// set is ever given.
  int AddSet(const std::vector<int>& ranks) {
    const std::vector<int32_t> list(ranks.begin(), ranks.end());
    int32_t set = 0;
    detail::Check(dtrun_named_queue_add_set(handle_.get(), list.data(), list.size(), &set));
    return set;
  }
  /// Collective. Nothing of it is under way on any rank.
  void RemoveSet(int set) { detail::Check(dtrun_named_queue_remove_set(handle_.get(), set)); }
  /// In ascending order; set 0 is all ranks.
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

  // The C ABI reads a number per rank.
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
