#ifndef DTRUN_RUNTIME_STEP_PARAMETER_SHARDS_H_
#define DTRUN_RUNTIME_STEP_PARAMETER_SHARDS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrun/types.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/device/block_device.h"
#include "runtime/step/owned_share.h"
#include "runtime/timeline/job_timeline.h"

namespace dtrun::runtime {

/// A parameter of a model, with its values.
struct ShardedParameter {
  std::string name;
  Buffer value;
};

struct ShardSettings {
  ReduceOp op = ReduceOp::kAverage;  ///< kAverage or kSum
  uint64_t bucket_bytes = 0;         ///< unless the update is one pass; 0: AutoBucketBytes
  bool one_copy = false;             ///< the ranks of a host share one copy of the parameters
  /// The optimizer's element-wise state by slot, all zeros at first. nullopt: the parameter's
  /// dtype.
  std::vector<std::optional<DType>> slots = {};
};

/// The gradients and parameters of a model, in memory that collectives reach. Each rank updates its
/// share and keeps the optimizer's state for that share only; see <dtrun/sharded_optimizer.h>. With
/// one copy per host on several hosts, the ranks of each host divide all parameters among
/// themselves. If the parameters lie on a GPU, all this memory and the state lie there. Not
/// thread-safe.
class ParameterShards {
 public:
  /// Collective. Copies rank 0's values into this object's memory on all ranks. With one copy per
  /// host, also gives the pages of the parameters back to the system.
  ParameterShards(
      ops::Communicator& communicator, std::vector<ShardedParameter> parameters,
      ShardSettings settings);

  /// If operations are under way, the process keeps the memory.
  ~ParameterShards();
  ParameterShards(ParameterShards&&) = default;

  size_t size() const { return parameters_.size(); }
  /// The place where gradient `i` must be written, and the place of parameter `i`.
  Buffer gradient(size_t i) const;
  Buffer value(size_t i) const;

  void MarkReady(size_t i);
  /// Completes the reduction, including gradients that are not marked. Then each rank has its share
  /// of the result. A second call before a step has no effect.
  void Reduce();
  /// In the next step, the new state of this rank's share also goes to `places`: that of slot s of
  /// own slice i to places[i * slots + s], with the slices in the order of ForOwnSlices. The step
  /// calls `begin` before it writes there, when all ranks have begun the step. On a GPU and with a
  /// built-in update the step does not copy. Without places neither. Throws Error kInvalidArgument
  /// if the number of places is wrong.
  void CopyStateInNextStep(const std::vector<void*>& places, std::function<void()> begin);
  /// Whether the last step has copied the state, and no state was set since.
  bool state_is_copied() const { return state_is_copied_; }
  /// Collective, after Reduce(). Computes the sum of squares of each reduced gradient and, unless
  /// `values` is null, of each value. All ranks pass null, or none does. Throws Error
  /// kInvalidArgument if the gradients are not reduced, or a parameter is neither f32 nor f64.
  void SquaredNorms(double* gradients, double* values);
  /// Collective. Calls `update` for this rank's share, with the reduced gradients times `factor`.
  /// Then starts to send the values to all ranks; `WaitFor` completes the transfer.
  void Step(double factor, const SliceUpdate& update);
  /// The same with a built-in update, in the pass over memory that reduces, if the step is one
  /// pass. Throws Error kInvalidArgument unless all parameters and the state are f32, with at most
  /// one slot; kUnavailable on a GPU.
  void Step(double factor, const MomentumStep& step);
  /// Returns when parameter `i` holds the results of the last step from all ranks.
  void WaitFor(size_t i);
  void WaitForAll();

  /// Calls `visit` for this rank's share. The gradients of the slices are unspecified.
  void ForOwnSlices(const SliceUpdate& visit) const;

  /// Collective. Gathers the whole of state slot `slot` of parameter `i` into `output` on rank
  /// `root`. If `root` is -1, on all ranks. `output` and `input` are host memory.
  void GatherState(size_t slot, size_t i, int root, void* output);
  /// The reverse: takes this rank's share from `input`, which has the whole state of the slot.
  void SetState(size_t slot, size_t i, const void* input);
  DType SlotDType(size_t slot, size_t i) const;

  const StepMeter& meter() const { return meter_; }

 private:
  void CheckParameters();
  bool on_gpu() const { return place_.device >= 0; }
  // True: a step is one pass over memory.
  bool is_fused() const { return !on_gpu() && communicator_->fuses_updates(); }
  bool HasSynchronized() const;
  std::unique_ptr<ops::Memory> Allocate(uint64_t bytes) const;
  Buffer Placed(Buffer buffer) const;
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
  void CheckScalable() const;
  /// Makes the update of this rank's share of a bucket.
  using MakeUpdate = std::function<ops::ShareUpdate(const OwnedShare&)>;
  void StepShares(
      double factor, const MakeUpdate& make, const std::function<void()>& begin = nullptr);
  void UpdateReduced(size_t bucket, double factor, const ops::ShareUpdate& update);
  void UpdateInOnePass(size_t bucket, double factor, const ops::ShareUpdate& update);
  void UpdateShares(double factor, const MakeUpdate& make, const std::function<void()>& begin);
  void StartGathers();
  void Reset();

  std::unique_ptr<ops::Communicator> communicator_;
  // The ranks of this host, if each host has a copy. Null: all ranks share one step.
  std::unique_ptr<ops::Communicator> host_;
  std::vector<int> host_ranks_;  // ranks of host_, as ranks of communicator_
  std::vector<ShardedParameter> parameters_;
  ShardSettings settings_;
  ShardPlan plan_;
  StepMeter meter_;
  Buffer place_;                              // the device and stream of the parameters
  std::unique_ptr<DeviceGradients> streams_;  // null in host memory
  std::unique_ptr<ops::Memory> gradients_, values_;
  std::unique_ptr<ops::Memory> state_;                // this rank's share
  std::vector<std::vector<uint64_t>> state_offsets_;  // bytes, by slot and bucket
  std::vector<OwnedShare> own_;                       // by bucket
  std::function<void()> begin_copies_;                // null: the next step does not copy the state
  bool state_is_copied_ = false;                      // by the last step

  std::vector<ops::Work> gathers_;  // of the last step, by bucket

  // State of the current step.
  std::vector<bool> ready_;            // by parameter
  std::vector<size_t> missing_;        // by bucket: gradients that are not ready
  std::vector<ops::Work> reductions_;  // of the buckets started so far
  bool reduced_ = false;
};

}  // namespace dtrun::runtime

#endif
