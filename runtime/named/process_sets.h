#ifndef DTRUN_RUNTIME_NAMED_PROCESS_SETS_H_
#define DTRUN_RUNTIME_NAMED_PROCESS_SETS_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "dtrun/types.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/named/set_queue.h"

namespace dtrun::runtime::named {

/// The operation of a submission; see dtrun_named_operation.
struct Operation {
  Kind kind = Kind::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;  ///< a rank of the queue
  int set = 0;
  Scale scale = {};
};

/// See dtrun_named_tensor.
struct NamedTensor {
  std::string_view name;
  Buffer input;
  Buffer output = Buffer(nullptr, 0, DType::kU8);
  std::vector<uint64_t> shape = {};
  std::vector<uint64_t> splits = {};
  bool has_splits = false;
};

/// One submission. Thread-safe.
class NamedWork {
 public:
  /// `queue` may be null if the submission is done.
  NamedWork(std::shared_ptr<SetQueue> queue, std::shared_ptr<Submission> submission)
      : queue_(std::move(queue)), submission_(std::move(submission)) {}

  /// Returns true once the submission is done or has failed.
  bool Test() { return queue_ == nullptr || queue_->Test(*submission_); }
  /// Waits until the submission is done. Throws its error.
  void Wait();
  /// The result of tensor `index`. Throws Error kInvalidArgument unless the submission is done
  /// without an error.
  const Part& result(size_t index) const;
  /// The rank of the process set that joined last. Throws Error kInvalidArgument unless the
  /// submission is a join that is done.
  int last_joined() const;

 private:
  std::shared_ptr<SetQueue> queue_;
  std::shared_ptr<Submission> submission_;
};

/// The queues of all process sets; see <dtrun/detail/c_named_queue.h>. Thread-safe, except that one
/// thread at a time makes the collective calls.
class NamedQueue {
 public:
  using Callback = SetQueue::Callback;

  /// Collective.
  NamedQueue(
      ops::Communicator& communicator, ops::Engine& engine, base::LogSink log,
      const Settings& settings);
  ~NamedQueue();
  NamedQueue(const NamedQueue&) = delete;
  NamedQueue& operator=(const NamedQueue&) = delete;

  /// Collective: adds or removes a set.
  int AddSet(std::vector<int> ranks);
  void RemoveSet(int set);
  /// The numbers of all sets, in ascending order.
  std::vector<int> Sets() const;
  /// The ranks of the set, in ascending order.
  std::vector<int> RanksOf(int set) const;

  NamedWork Submit(const Operation& operation, NamedTensor tensor, Callback callback = nullptr);
  /// Submits a group.
  NamedWork Submit(
      const Operation& operation, std::vector<NamedTensor> tensors, Callback callback = nullptr);
  NamedWork Barrier(int set = 0, Callback callback = nullptr);
  NamedWork Join(int set = 0, Callback callback = nullptr);

 private:
  struct Set {
    std::vector<int> ranks;           // ranks of the queue
    std::shared_ptr<SetQueue> queue;  // null if this rank is not in the set
  };

  std::shared_ptr<SetQueue> MemberOf(int set, const char* operation) const;
  int RootOf(const Operation& operation, const NamedTensor& tensor) const;
  void CheckSet(const std::vector<int>& ranks) const;
  int Insert(Set set);
  std::unique_ptr<TensorObserver> Observe(const std::string& ranks) const;

  ops::Engine& engine_;
  base::LogSink log_;
  Settings settings_;
  std::unique_ptr<ops::Communicator> control_;
  mutable std::mutex mutex_;  // guards the members below
  std::map<int, Set> sets_;
  int next_set_ = 0;
};

}  // namespace dtrun::runtime::named

#endif
