#ifndef DTRUN_DETAIL_STRATEGY_OPTIMIZER_H_
#define DTRUN_DETAIL_STRATEGY_OPTIMIZER_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/statistics.h>
#include <dtrun/distributed_optimizer.h>
#include <dtrun/optimizer.h>
#include <dtrun/sharded_optimizer.h>
#include <dtrun/state_broadcast.h>
#include <dtrun/types.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace dtrun {

/// What a StrategyOptimizer can be told. The same on all replicas.
struct StrategyOptimizerOptions {
  /// kSum, since the loss is divided by the global batch; or kAverage. Or kAdasum, where each
  /// replica has a copy: see DistributedOptions::op; the state is then each replica's own.
  ReduceOp op = ReduceOp::kSum;
  /// Clips by the norm of all reduced gradients together; 0: never.
  double max_gradient_norm = 0;
  /// A reduction starts when this much is complete; 0: the option `bucket_bytes`.
  uint64_t bucket_bytes = 0;
};

/// An optimizer whose steps a strategy makes: at every step, with the gradients of all replicas.
/// Parameters without gradient memory get it when they are wrapped; where values and gradients lie
/// is for the strategy to say (`Parameter::value` and `gradient`). Not thread-safe.
///
///   optimizer.MarkReady(i)   optional: as soon as the gradient of parameter i is complete
///   optimizer.Step()         reduces, updates, and returns when all values are there
class StrategyOptimizer {
 public:
  virtual ~StrategyOptimizer() = default;

  virtual void MarkReady(size_t i) = 0;
  /// Collective.
  virtual void Step() = 0;

  /// The inner optimizer's whole state on this replica, named as its `state()` names it, for a
  /// checkpoint to be made of or written into; valid until the next Step(). Collective.
  virtual std::vector<NamedBuffer> BorrowState() = 0;
  /// What has been written into the borrowed state since, the same on all replicas, counts from now
  /// on. Collective.
  virtual void ReturnState() = 0;

  /// The parameters' values for something else than Step() to write, all of them and the same on
  /// all replicas, such as a checkpoint that is loaded. Where replicas share memory, one of them
  /// has it and the others scratch memory. Local.
  virtual std::vector<NamedBuffer> BorrowValues() = 0;
  /// What has been written is what every replica reads from now on. Collective.
  virtual void ReturnValues() = 0;

  /// Where the time of the steps went on this rank.
  virtual ReducerStatistics statistics() const = 0;
};

/// A copy of the parameters and of the optimizer's state in each replica; all start from those of
/// replica 0.
class MirroredOptimizer : public StrategyOptimizer {
 public:
  /// Collective. `inner` outlives it.
  MirroredOptimizer(
      Communicator& replicas, Optimizer& inner, const StrategyOptimizerOptions& options = {})
      : inner_(inner), optimizer_(replicas, inner, ToDistributed(options)) {
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
  ReducerStatistics statistics() const override { return optimizer_.statistics(); }

 private:
  static DistributedOptions ToDistributed(const StrategyOptimizerOptions& options) {
    DistributedOptions told;
    told.op = options.op;
    told.max_gradient_norm = options.max_gradient_norm;
    told.bucket_bytes = options.bucket_bytes;
    return told;
  }

  Optimizer& inner_;
  DistributedOptimizer optimizer_;
};

/// One copy of the parameters per host, in memory that its ranks map, and one of the optimizer's
/// state, a share of it with each of them. Gradients are reduced and applied once per host. All
/// start from replica 0's values; the elements' state starts at zero. kInvalidArgument for an
/// optimizer whose update cannot be cut (SliceableOptimizer).
class CentralOptimizer : public StrategyOptimizer {
 public:
  /// Collective. `host` has the replicas of this host; it and `inner` outlive this.
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
