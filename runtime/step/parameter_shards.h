#ifndef DTRUN_RUNTIME_STEP_PARAMETER_SHARDS_H_
#define DTRUN_RUNTIME_STEP_PARAMETER_SHARDS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrun/types.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/step/owned_share.h"
#include "runtime/timeline/step_meter.h"

namespace dtrun::runtime {

/// A parameter of a model, with its values.
struct ShardedParameter {
  std::string name;
  Buffer value;
};

struct ShardSettings {
  ReduceOp op = ReduceOp::kAverage;  ///< or kSum
  uint64_t bucket_bytes = 0;         ///< where the update is not one pass; 0: AutoBucketBytes
  bool one_copy = false;             ///< the ranks of a host use the same parameters in one memory
  /// The element-wise state of the optimizer, all zeros at first; none: the parameter's dtype.
  std::vector<std::optional<DType>> slots = {};
};

/// The gradients and parameters of a model in memory that collectives reach, of which each rank
/// updates a share and keeps the optimizer's state for that share alone; see
/// <dtrun/sharded_optimizer.h>. With one copy per host on several hosts, the ranks of each host
/// share out the whole of it among themselves. Not thread-safe.
class ParameterShards {
 public:
  /// Collective. The values become rank 0's, and move here.
  ParameterShards(
      ops::Communicator& communicator, std::vector<ShardedParameter> parameters,
      ShardSettings settings);

  /// Operations that are under way keep the memory.
  ~ParameterShards();
  ParameterShards(ParameterShards&&) = default;

  size_t size() const { return parameters_.size(); }
  /// Where gradient `i` has to be written, and where parameter `i` lies.
  Buffer gradient(size_t i) const;
  Buffer value(size_t i) const;

  void MarkReady(size_t i);
  /// Completes the reduction, of what was not marked as well: each rank has its share of it.
  /// Nothing, the second time before a step.
  void Reduce();
  /// Sums of squares of each gradient, as reduced, and, unless null, of each value: the same
  /// choice on all ranks. Collective, after Reduce().
  void SquaredNorms(double* gradients, double* values);
  /// Calls `update` for this rank's share, with the reduced gradients times `factor`, and starts
  /// bringing the values to all ranks, which `WaitFor` completes. Collective.
  void Step(double factor, const SliceUpdate& update);
  /// The same with an update that is computed here, in the pass over memory that reduces. Error
  /// kInvalidArgument unless all parameters and the state are f32, with at most one slot.
  void Step(double factor, const MomentumStep& step);
  /// Returns when parameter `i` holds what the last step made of it on all ranks.
  void WaitFor(size_t i);
  void WaitForAll();

  /// The whole of state slot `slot` of parameter `i` to `output`, on rank `root`; -1: on all.
  /// Collective.
  void GatherState(size_t slot, size_t i, int root, void* output);
  /// The other way round, from memory of this rank's: takes its own share of it.
  void SetState(size_t slot, size_t i, const void* input);
  DType SlotDType(size_t slot, size_t i) const;

  const StepMeter& meter() const { return meter_; }

 private:
  void CheckParameters() const;
  void JoinHost();
  void CheckHost();
  void AgreeOnPlan();
  void TakeValues();
  void TakeValuesTogether();
  void AllocateState();
  void FindOwnShares();
  void CheckIndex(size_t i) const;
  void CheckSlot(size_t slot) const;
  // The ranks that update all parameters together.
  ops::Communicator& owners() const { return host_ ? *host_ : *communicator_; }
  int own_rank() const { return owners().rank(); }
  size_t bucket_count() const { return plan_.layout.buckets.size(); }
  Buffer InBucket(const ops::Memory& block, size_t bucket) const;
  Buffer InBlock(const ops::Memory& block, size_t i) const;
  OwnedShare::Column StateOf(size_t slot, size_t bucket) const;
  char* StateAt(size_t slot, const ShardSlice& slice) const;
  void StartReadyBuckets();
  void MarkTheRest();
  void Meet();
  void WaitForBucket(size_t bucket);
  void CheckMomentum(const MomentumStep& step) const;
  /// What a step does with what this rank owns of a bucket.
  using MakeUpdate = std::function<ops::ShareUpdate(const OwnedShare&)>;
  void StepShares(double factor, const MakeUpdate& make);
  void UpdateReduced(size_t bucket, double factor, const ops::ShareUpdate& update);
  void UpdateInOnePass(size_t bucket, double factor, const ops::ShareUpdate& update);
  void UpdateShares(double factor, const MakeUpdate& make);
  void StartGathers();
  void Reset();

  std::unique_ptr<ops::Communicator> communicator_;
  // Of the ranks of this host, where each host has a copy; null: all ranks share out one step.
  std::unique_ptr<ops::Communicator> host_;
  std::vector<int> host_ranks_;  // of it, as ranks of communicator_
  std::vector<ShardedParameter> parameters_;
  ShardSettings settings_;
  ShardPlan plan_;
  StepMeter meter_;
  std::unique_ptr<ops::Memory> gradients_, values_;
  std::unique_ptr<ops::Memory> state_;                // this rank's share
  std::vector<std::vector<uint64_t>> state_offsets_;  // bytes, by slot and bucket
  std::vector<OwnedShare> own_;                       // by bucket

  std::vector<ops::Work> gathers_;  // of the last step, by bucket

  // Of this step.
  std::vector<bool> ready_;            // by parameter
  std::vector<size_t> missing_;        // by bucket: gradients that are not ready
  std::vector<ops::Work> reductions_;  // of the buckets started so far
  bool reduced_ = false;
};

}  // namespace dtrun::runtime

#endif
