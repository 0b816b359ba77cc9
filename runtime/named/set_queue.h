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
#include "runtime/named/named_request.h"
#include "runtime/named/news_round.h"
#include "runtime/named/tensor_table.h"
#include "runtime/named/transfer_line.h"

namespace dtrun::runtime::named {

struct Settings {
  /// Of a batch: what is larger moves alone, and without a copy.
  uint64_t batch_bytes = 4 << 20;
  /// Names that are announced by a number.
  size_t cache_capacity = 1024;
  /// Process sets that are added before anything else.
  size_t first_sets = 0;
  /// How long a tensor waits for other ranks to submit it before that is reported, and before it
  /// fails on the ranks that have.
  base::Duration stall_warning = std::chrono::seconds(30);
  base::Duration timeout = std::chrono::seconds(600);
};

/// What this rank wants to have done under one name.
struct Submitted {
  std::string_view name;
  Request request;
  Buffer input, output;
  Tensor* tensor = nullptr;  // the queue's
};

/// The queue of one process set: see set_queue.cc. Thread-safe.
class SetQueue : public ops::Driver, public std::enable_shared_from_this<SetQueue> {
 public:
  using Callback = std::function<void(const std::shared_ptr<Submission>&)>;

  /// Collective over the ranks of `communicator`, of which it takes duplicates.
  SetQueue(
      ops::Communicator& communicator, ops::Engine& engine, base::LogSink log,
      const Settings& settings);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const ops::Members& members() const { return round_.members(); }

  /// Queues all of it or, with an Error, nothing: kInvalidArgument when a name is under way or this
  /// rank has joined; what has broken the queue.
  std::shared_ptr<Submission> Submit(std::span<Submitted> tensors, Callback callback);
  std::shared_ptr<Submission> Join(Callback callback);

  /// Drives progress until it is done.
  void Wait(const Submission& submission);
  bool Test(const Submission& submission);

  /// Nothing of this rank is under way.
  bool IsIdle() const;
  /// What is under way ends with an error. It is no driver any more.
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
  void FinishPart(Part& part);
  void FailPart(Part& part, const std::exception_ptr& error);
  void End(Submission& submission);
  void CallBack();
  void Break(const std::exception_ptr& error);

  base::Duration LookForOthers();
  std::optional<int> FirstLeaver(const std::vector<int>& ranks) const;
  base::Duration LookAtTensor(const Tensor& tensor);
  base::Duration LookAtJoin();
  std::string DescribePending() const;

  ops::Engine& engine_;
  base::LogSink log_;
  Settings settings_;
  Round round_;
  TransferLine line_;
  int rank_, size_;
  bool rings_;

  // Guards what follows; taken after the engine's lock. Recursive: starting an operation may make
  // the engine report a stall, which asks what is pending here.
  mutable std::recursive_mutex mutex_;
  TensorTable table_;
  std::exception_ptr broken_;
  std::shared_ptr<Submission> join_;  // of this rank; null: it has not joined
  base::Duration join_since_ = base::Duration(-1);
  bool join_warned_ = false, join_withdrawn_ = false;
  std::vector<std::shared_ptr<Submission>> ended_;  // whose callbacks have not been called

  // A burst: submissions without a wait in between.
  size_t held_ = 0, held_most_ = 1;
  uint64_t held_bytes_ = 0;
  std::atomic<bool> burst_ended_{false};  // by a wait, which takes no lock for that

  size_t submitted_ = 0;  // parts that are not done
  bool answers_ =
      false;  // it takes part in the next round of others, though nothing here depends on it
  base::Duration patience_ = {};  // how long this rank has looked on
  base::TimePoint looked_ = {};
  base::Duration awaited_since_ = base::Duration(-1);  // a round of others, that is; negative: not
};

}  // namespace dtrun::runtime::named

#endif
