#ifndef DTRUN_DETAIL_STRATEGY_OPTIMIZER_H_
#define DTRUN_DETAIL_STRATEGY_OPTIMIZER_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/statistics.h>
#include <dtrun/distributed_optimizer.h>
#include <dtrun/optimizer.h>
#include <dtrun/sharded_optimizer.h>
#include <dtrun/types.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace dtrun {

/// The options of a StrategyOptimizer. The same on all replicas.
struct StrategyOptimizerOptions {
  /// kSum if the loss is divided by the global batch, else kAverage. For strategies with a copy per
  /// replica also kAdasum (see DistributedOptions::op): each replica then has its own optimizer
  /// state.
  ReduceOp op = ReduceOp::kSum;
  /// The largest norm of all reduced gradients together: larger gradients are clipped. 0: no
  /// clipping.
  double max_gradient_norm = 0;
  /// The size of a bucket: a bucket's reduction starts when all of the bucket is complete. 0: the
  /// option `bucket_bytes`.
  uint64_t bucket_bytes = 0;
};

/// An optimizer that a strategy steps, with the gradients of all replicas. Parameters without
/// gradient memory get it when they are wrapped. The strategy decides the place of values and
/// gradients (`Parameter::value` and `gradient`). Not thread-safe.
///
///   optimizer.MarkReady(i)   optional: as soon as the gradient of parameter i is complete
///   optimizer.Step()         reduces, updates, and returns when all values are there
class StrategyOptimizer {
 public:
  virtual ~StrategyOptimizer() = default;

  /// Marks the gradient of parameter `i` as complete: its reduction may start. Do not touch the
  /// gradient before Step(). kInvalidArgument: it was already marked since the last step.
  virtual void MarkReady(size_t i) = 0;
  /// Reduces the gradients, updates the parameters, and returns when all values are there.
  /// Collective.
  virtual void Step() = 0;

  /// Returns the inner optimizer's whole state on this replica, with the names of its `state()`.
  /// Read it to save a checkpoint, or write to it to load one. Valid until the next Step().
  /// Collective.
  virtual std::vector<NamedBuffer> BorrowState() = 0;
  /// Applies the changes of the borrowed state. All replicas have written the same values.
  /// Collective.
  virtual void ReturnState() = 0;

  /// Returns the parameters' values, for writers other than Step(), for example to load a
  /// checkpoint. All replicas write all values, and the same values. If replicas share memory, one
  /// replica gets that memory, and the others get scratch memory. Local.
  virtual std::vector<NamedBuffer> BorrowValues() = 0;
  /// Makes the written values visible to every replica. Collective.
  virtual void ReturnValues() = 0;

  /// Whether this replica has all values and the whole state of the optimizer, so that they survive
  /// the loss of other replicas. Then BorrowState is local. Local.
  virtual bool has_whole_state() const { return false; }

  /// Changes when values change outside Step() and ReturnValues(): a worker of parameter servers
  /// pulls values when it gets a batch. Local.
  virtual uint64_t values_version() const { return 0; }
  /// The number of the next step, if the replicas share the steps, as workers of parameter servers
  /// do. nullopt: each step is a step of all replicas. Local.
  virtual std::optional<uint64_t> assigned_step() const { return std::nullopt; }
  /// The time that steps took on this rank.
  virtual ReducerStatistics statistics() const = 0;
};

/// Keeps a copy of the parameters and of the optimizer's state in each replica. All replicas start
/// from the copy of replica 0.
class MirroredOptimizer : public StrategyOptimizer {
 public:
  /// Collective. `inner` outlives this object.
  MirroredOptimizer(
      Communicator& replicas, Optimizer& inner, const StrategyOptimizerOptions& options = {})
      : op_(options.op), inner_(inner), optimizer_(replicas, inner, ToDistributed(options)) {
    BroadcastParameters(replicas, inner.parameters());
    BroadcastOptimizerState(replicas, inner);
  }

  void MarkReady(size_t i) override { optimizer_.MarkReady(i); }
  void Step() override { optimizer_.Step(); }
  std::vector<NamedBuffer> BorrowState() override { return inner_.state(); }
  void ReturnState() override {}
  std::vector<NamedBuffer> BorrowValues() override {
    std::vector<NamedBuffer> values;
    for (const Parameter& parameter : inner_.parameters())
      values.push_back({parameter.name, parameter.value});
    return values;
  }
  void ReturnValues() override {}
  /// With kAdasum, each rank has a state of its own.
  bool has_whole_state() const override { return op_ != ReduceOp::kAdasum; }
  ReducerStatistics statistics() const override { return optimizer_.statistics(); }

 private:
  static DistributedOptions ToDistributed(const StrategyOptimizerOptions& options) {
    DistributedOptions told;
    told.op = options.op;
    told.max_gradient_norm = options.max_gradient_norm;
    told.bucket_bytes = options.bucket_bytes;
    return told;
  }

  ReduceOp op_;
  Optimizer& inner_;
  DistributedOptimizer optimizer_;
};

/// Keeps one copy of the parameters per host, in memory that all ranks of the host map. Each host
/// has one copy of the optimizer's state, and each of its ranks holds a share. Gradients are
/// reduced and applied once per host. All ranks start from replica 0's values, with zero element
/// state. kInvalidArgument: the optimizer is not a SliceableOptimizer.
class CentralOptimizer : public StrategyOptimizer {
 public:
  /// Collective. `host` has the replicas of this host. `host` and `inner` outlive this object.
  CentralOptimizer(
      Communicator& replicas, Communicator& host, Optimizer& inner,
      const StrategyOptimizerOptions& options = {})
      : size_(static_cast<size_t>(replicas.size())),
        host_(host),
        optimizer_(replicas, inner, ToSharded(options)) {}

  void MarkReady(size_t i) override { optimizer_.MarkReady(i); }
  void Step() override {
    borrowed_.clear();
    optimizer_.Step();
  }
  std::vector<NamedBuffer> BorrowState() override {
    borrowed_ = optimizer_.ExportState();
    std::vector<NamedBuffer> views;
    for (StateBuffer& state : borrowed_) views.push_back({state.name, state.buffer()});
    return views;
  }
  void ReturnState() override { optimizer_.ImportState(borrowed_); }
  std::vector<NamedBuffer> BorrowValues() override {
    std::vector<NamedBuffer> values;
    for (const Parameter& parameter : optimizer_.parameters()) {
      Buffer value = parameter.value;
      if (host_.rank() != 0) {
        scratch_.emplace_back((value.bytes() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
        value.data = scratch_.back().data();
      }
      values.push_back({parameter.name, value});
    }
    return values;
  }
  void ReturnValues() override {
    scratch_.clear();
    host_.Barrier();
  }
  ReducerStatistics statistics() const override {
    ReducerStatistics statistics = optimizer_.statistics();
    statistics.late_by_rank_s.resize(size_);
    return statistics;
  }

 private:
  static ShardedOptions ToSharded(const StrategyOptimizerOptions& options) {
    ShardedOptions told;
    told.op = options.op;
    told.max_gradient_norm = options.max_gradient_norm;
    told.bucket_bytes = options.bucket_bytes;
    told.one_copy_per_host = true;
    return told;
  }

  size_t size_;
  Communicator& host_;
  ShardedOptimizer optimizer_;
  std::vector<StateBuffer> borrowed_;
  std::vector<std::vector<uint64_t>> scratch_;
};

}  // namespace dtrun

#endif
