#ifndef DTRUN_RUNTIME_GRADIENT_REDUCER_H_
#define DTRUN_RUNTIME_GRADIENT_REDUCER_H_

#include <memory>
#include <string>
#include <vector>

#include "dtrun/types.h"
#include "ops/communicator.h"
#include "runtime/bucket_plan.h"
#include "runtime/step_meter.h"

namespace dtrun::runtime {

/// One gradient: with null data it lives in the reducer's block.
struct Gradient {
  std::string name;
  Buffer buffer;
};

/// The factors of `scale` are in [1/1024, 1024], and 1 unless `op` is kSum or kAverage.
struct ReducerSettings {
  ReduceOp op = ReduceOp::kAverage;
  uint64_t bucket_bytes = 0;
  Scale scale = {};
  const base::Clock* clock = nullptr;  ///< of the statistics; null: the steady clock
};

/// Reduces gradients in buckets while backward runs; see <dtrun/gradient_reducer.h>. Not
/// thread-safe.
class GradientReducer {
 public:
  /// Collective. Takes a duplicate of `communicator`, so the caller's own collectives never
  /// interleave.
  GradientReducer(
      ops::Communicator& communicator, std::vector<Gradient> gradients,
      const ReducerSettings& settings);

  /// Operations that are under way keep the block.
  ~GradientReducer();
  GradientReducer(GradientReducer&&) = default;

  /// Where gradient `i` has to be written.
  Buffer gradient(size_t i) const;
  void MarkReady(size_t i);
  void MarkReadyFrom(size_t i, const void* source);
  void MarkReadyAt(size_t i, const void* source, void* place);
  void MarkUnused(size_t i);
  void MarkUnusedAt(size_t i, void* place);
  void Wait();
  bool WasUsed(size_t i) const;
  bool IsAlone(size_t i) const;

  const BucketPlan& plan() const { return plan_; }
  /// Of the steps so far.
  const StepMeter& meter() const { return meter_; }

 private:
  void AgreeOnPlan();
  Buffer InBlock(size_t i) const;
  void* FlagOf(size_t i) const;
  void SetFlag(size_t i, bool used);
  void BeginMark(size_t i);
  void EndMark(size_t i, bool used);
  bool IsPacked(size_t i) const { return gradients_[i].buffer.data != nullptr; }
  void CheckIndex(size_t i) const;
  void CheckAlone(size_t i) const;
  void StartReadyBuckets();
  void FinishStep();
  void Unpack(size_t i);
  void Copy(const Buffer& to, const void* from);
  void Reset();

  std::unique_ptr<ops::Communicator> communicator_;
  std::vector<Gradient> gradients_;
  ReducerSettings settings_;
  BucketPlan plan_;
  FlagPlan flags_;
  std::unique_ptr<ops::Memory> block_;
  StepMeter meter_;

  // Of this step.
  std::vector<bool> ready_;        // by gradient
  std::vector<bool> unused_here_;  // by gradient
  std::vector<size_t> missing_;    // by bucket: gradients that are not ready
  std::vector<void*> places_;      // by bucket: where it is reduced, if not in the block
  std::vector<ops::Work> works_;   // of the buckets started so far
};

}  // namespace dtrun::runtime

#endif
