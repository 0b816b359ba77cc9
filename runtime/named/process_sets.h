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

/// What is to be done with the tensors of a submission; see dtrun_named_operation.
struct Operation {
  Kind kind = Kind::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;  ///< rank of the queue
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
  /// `queue` may be null when it is done.
  NamedWork(std::shared_ptr<SetQueue> queue, std::shared_ptr<Submission> submission)
      : queue_(std::move(queue)), submission_(std::move(submission)) {}

  /// True once it is done or has failed.
  bool Test() { return queue_->Test(*submission_); }
  /// Throws its error.
  void Wait();
  /// Of tensor `index`, once it is done; throws Error kInvalidArgument before.
  const Part& result(size_t index) const;
  /// Rank of the process set.
  int last_joined() const;

 private:
  std::shared_ptr<SetQueue> queue_;
  std::shared_ptr<Submission> submission_;
};

/// The queues of all process sets; see <dtrun/detail/c_named_queue.h>. Thread-safe, but for the
/// collective calls, which are made by one thread.
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

  /// Collective.
  int AddSet(std::vector<int> ranks);
  void RemoveSet(int set);
  /// In ascending order.
  std::vector<int> RanksOf(int set) const;

  NamedWork Submit(const Operation& operation, NamedTensor tensor, Callback callback = nullptr);
  /// A group.
  NamedWork Submit(
      const Operation& operation, std::vector<NamedTensor> tensors, Callback callback = nullptr);
  NamedWork Barrier(int set = 0, Callback callback = nullptr);
  NamedWork Join(int set = 0, Callback callback = nullptr);

 private:
  struct Set {
    std::vector<int> ranks;           // of the queue
    std::shared_ptr<SetQueue> queue;  // null where this rank is not in it
  };

  std::shared_ptr<SetQueue> MemberOf(int set, const char* operation) const;
  int RootOf(const Operation& operation, const NamedTensor& tensor) const;
  void CheckSet(const std::vector<int>& ranks) const;
  int Insert(Set set);

  ops::Engine& engine_;
  base::LogSink log_;
  Settings settings_;
  std::unique_ptr<ops::Communicator> control_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<int, Set> sets_;
  int next_set_ = 0;
};

}  // namespace dtrun::runtime::named

#endif
