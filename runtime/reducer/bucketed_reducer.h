#ifndef DTRUN_RUNTIME_REDUCER_BUCKETED_REDUCER_H_
#define DTRUN_RUNTIME_REDUCER_BUCKETED_REDUCER_H_

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "dtrun/types.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/reducer/autotuner.h"
#include "runtime/reducer/bucket_plan.h"
#include "runtime/reducer/gradient_block.h"
#include "runtime/reducer/reducer_settings.h"
#include "runtime/timeline/job_timeline.h"

namespace dtrun::runtime {

/// Reduces gradients in buckets while backward runs; see <dtrun/gradient_reducer.h>. Not
/// thread-safe.
class GradientReducer {
 public:
  /// Collective. Uses a duplicate of `communicator`, so that its operations never interleave with
  /// the caller's collectives.
  GradientReducer(
      ops::Communicator& communicator, std::vector<Gradient> gradients, ReducerSettings settings,
      std::unique_ptr<ReducerObserver> observer = nullptr);

  /// If operations are under way, the process keeps the memory.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// The place where gradient `i` must be written.
  Buffer gradient(size_t i) const;
  void MarkReady(size_t i);
  void MarkReadyFrom(size_t i, const void* source);
  void MarkReadyAt(size_t i, const void* source, void* place);
  void MarkUnused(size_t i);
  void MarkUnusedAt(size_t i, void* place);
  void Wait();
  bool WasUsed(size_t i) const;
  /// Changes one bit of the reduced gradients of bucket `bucket`, on this rank alone. Between two
  /// steps. Returns false if there is no such bucket.
  bool Corrupt(size_t bucket);
  bool IsAlone(size_t i) const;

  const BucketPlan& plan() const { return plan_; }
  /// The statistics of the steps so far.
  const StepMeter& meter() const { return meter_; }

 private:
  void CheckIndex(size_t i) const;
  void CheckAlone(size_t i) const;
  bool IsPacked(size_t i) const { return gradients_[i].buffer.data != nullptr; }

  void BeginMark(size_t i);
  void EndMark(size_t i, bool used);
  void StartReadyBuckets();
  void Start(size_t b);
  Buffer GradientsOf(size_t b) const;
  void FinishStep();
  void FinishBuckets();
  void Finish(size_t b);
  void Unpack(size_t i);
  void Copy(const Buffer& to, const void* from);
  void Progress();
  void Reset();
  void Rebuild();
  void Cut();
  void StartTuning();
  void Tune();
  void Apply(const Tuning& tuning);
  bool AgreeOnPlan();
  void LayWire();
  // Throws the error that broke the reducer earlier. Stores an error that breaks it now.
  template <typename Body>
  void Communicate(const Body& body);

  std::vector<Gradient> gradients_;
  ReducerSettings settings_;
  std::unique_ptr<ops::Communicator> communicator_;
  BucketPlan plan_;
  bool movable_;  // no rank has gradients in the block
  std::unique_ptr<GradientBlock> block_;
  WireBlock wire_;
  UsedFlags flags_;
  std::vector<bool> was_used_;         // by gradient, of the last step
  std::vector<uint64_t> ready_order_;  // of the first step, until the plan is rebuilt
  std::vector<size_t> order_;          // the ready order of the plan
  bool rebuilt_;
  std::unique_ptr<Autotuner> tuner_;  // null: no tuning
  StepMeter meter_;
  std::unique_ptr<ReducerObserver> observer_;  // may be null
  std::exception_ptr error_;                   // the error that broke the reducer

  // State of the current step.
  std::vector<bool> ready_;        // by gradient
  std::vector<bool> unused_here_;  // by gradient
  std::vector<size_t> missing_;    // by bucket: gradients that are not ready
  std::vector<void*> places_;      // by bucket: where it is reduced; null: in the block
  std::vector<ops::Work> works_;   // of the buckets started so far
  ops::Work flags_work_;           // if the flags are apart
};

}  // namespace dtrun::runtime

#endif
