#ifndef DTRUN_RUNTIME_NAMED_SET_QUEUE_H_
#define DTRUN_RUNTIME_NAMED_SET_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/process.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "runtime/named/batch_transfer.h"
#include "runtime/named/named_request.h"
#include "runtime/named/news_round.h"
#include "runtime/named/tensor_table.h"
#include "runtime/timeline/job_timeline.h"

namespace dtrun::runtime::named {

struct Settings {
  /// The size of a batch. A larger tensor moves alone, without a copy.
  uint64_t batch_bytes = 4 << 20;
  /// The number of names that can be announced by a number.
  size_t cache_capacity = 1024;
  /// The number of process sets that are added before anything else.
  size_t first_sets = 0;
  /// How long a tensor waits for other ranks to submit it: until a warning, and until it fails on
  /// the ranks that have submitted it.
  base::Duration stall_warning = std::chrono::seconds(30);
  base::Duration timeout = std::chrono::seconds(600);
  /// Makes the observer of a process set, whose ranks are `ranks`; "": all. Null: none.
  std::function<std::unique_ptr<TensorObserver>(std::string ranks)> observe = nullptr;
};

/// A tensor that this rank submits.
struct Submitted {
  std::string_view name;
  Request request;
  Buffer input, output;      // in host memory
  GpuTensor gpu = {};        // of a tensor on a GPU
  Tensor* tensor = nullptr;  // set by the queue
};

/// The queue of one process set: see set_queue.cc. Thread-safe.
class SetQueue : public ops::Driver, public std::enable_shared_from_this<SetQueue> {
 public:
  using Callback = std::function<void(const std::shared_ptr<Submission>&)>;

  /// Collective over the ranks of `communicator`. Uses duplicates of it. `observer` may be null.
  SetQueue(
      ops::Communicator& communicator, ops::Engine& engine, base::LogSink log,
      const Settings& settings, std::unique_ptr<TensorObserver> observer = nullptr);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const ops::Members& members() const { return round_.members(); }

  /// Queues all tensors, or throws an Error and queues none. kInvalidArgument: a name is twice in
  /// the group or under way, or this rank has joined. If the queue is broken, throws the error that
  /// broke it.
  std::shared_ptr<Submission> Submit(std::span<Submitted> tensors, Callback callback);
  std::shared_ptr<Submission> Join(Callback callback);

  /// Drives progress until the submission is done.
  void Wait(const Submission& submission);
  bool Test(const Submission& submission);

  /// True if no submission of this rank is under way.
  bool IsIdle() const;
  /// Ends all submissions under way with an error. The engine does not advance this queue any more.
  void Close();

  bool Advance() override;
  base::TimePoint Look(base::TimePoint now) override;
  bool NeedsPolling() const override { return !rings_; }
  bool HasNews() const override;
  bool Waits() const override { return !IsIdle(); }

 private:
  void CheckUsable() const;
  void CheckNew(std::span<const Submitted> tensors) const;
  void FindTensors(std::span<Submitted> tensors);
  bool WantsToAnnounceNow(uint64_t bytes);
  void Drive(bool now);
  void EndBurst();

  bool Step();
  bool TakesPart() const;
  void BeginRound();
  bool ContinueRound();
  void Follow(Outcome outcome);
  void FinishBatch(const Batch& batch);
  void FinishPart(Part& part, bool failed = false);
  void FailPart(Part& part, const std::exception_ptr& error);
  void End(Submission& submission);
  void CallBack();
  void Break(const std::exception_ptr& error);

  base::Duration LookForOthers();
  std::optional<int> FirstLeaver(const std::vector<int>& ranks) const;
  base::Duration LookAt(
      OthersAwaited& others, const std::vector<int>& missing, const Tensor* tensor);
  std::string DescribePending() const;

  ops::Engine& engine_;
  base::LogSink log_;
  Settings settings_;
  std::unique_ptr<TensorObserver> observer_;  // called under the lock; may be null
  Round round_;
  TransferLine line_;
  int rank_, size_;
  bool rings_;

  // Guards the members below. Taken after the engine's lock. Recursive: the start of an operation
  // may make the engine report a stall, and the report asks this queue for its pending tensors.
  mutable std::recursive_mutex mutex_;
  TensorTable table_;
  std::exception_ptr broken_;
  std::shared_ptr<Submission> join_;                // this rank's join; null: it has not joined
  OthersAwaited not_joined_;                        // ranks that this rank's join waits for
  std::vector<std::shared_ptr<Submission>> ended_;  // their callbacks have not been called

  // A burst: submissions without a wait between them.
  size_t held_ = 0, held_most_ = 1;
  uint64_t held_bytes_ = 0;
  std::atomic<bool> burst_ended_{false};  // set by a wait, without the lock

  size_t submitted_ = 0;          // parts that are not done
  bool answers_ = false;          // takes part in the next round only to answer other ranks
  base::Duration patience_ = {};  // the patience clock: watched time
  base::TimePoint looked_ = {};
  base::Duration awaited_since_ = base::Duration(-1);  // a round of other ranks; negative: none
};

}  // namespace dtrun::runtime::named

#endif
