#ifndef DTRUN_RUNTIME_TIMELINE_STEP_METER_H_
#define DTRUN_RUNTIME_TIMELINE_STEP_METER_H_

#include <cstddef>
#include <utility>

#include "base/flight_record.h"
#include "base/process.h"
#include "ops/engine/flight_recorder.h"

namespace dtrun::runtime {

/// Measures the time of steps and its parts: see <dtrun/detail/statistics.h>. Not thread-safe.
class StepMeter {
 public:
  explicit StepMeter(const base::Clock& clock) : clock_(&clock), began_(clock.Now()) {}

  /// While a scope lives, time counts as the reducer's own. If scopes are nested, the outer one
  /// counts.
  class [[nodiscard]] Scope {
   public:
    explicit Scope(StepMeter& meter) {
      if (std::exchange(meter.inside_, true)) return;
      meter_ = &meter;
      entered_ = meter.clock_->Now();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (meter_ == nullptr) return;
      meter_->left_ = meter_->clock_->Now();
      meter_->exposed_ += meter_->left_ - entered_;
      meter_->inside_ = false;
    }

   private:
    StepMeter* meter_ = nullptr;  // null: nested in another scope
    base::TimePoint entered_ = {};
  };

  void AddBucket(uint64_t bytes) {
    ++running_.buckets;
    running_.bytes += bytes;
  }
  /// Waits add their lateness here.
  ops::Lateness& lateness() { return lateness_; }
  /// Ends the step. The scope of the step's wait has just ended.
  void EndStep();

  const base::StepTotals& last() const { return last_; }
  const base::StepTotals& total() const { return total_; }
  /// The lateness of all steps.
  const ops::Lateness& total_lateness() const { return lateness_; }

 private:
  const base::Clock* clock_;
  base::TimePoint began_, left_ = {};
  base::Duration exposed_ = {};
  ops::Lateness lateness_;            // of all steps
  base::Duration counted_late_ = {};  // the part of steps that have ended
  bool inside_ = false;
  base::StepTotals running_, last_, total_;
};

/// Receives the events of a GradientReducer, on the thread that uses the reducer. Its functions
/// must be quick.
class ReducerObserver {
 public:
  virtual ~ReducerObserver() = default;
  virtual void Marked(size_t gradient) = 0;
  /// The next operation that this thread starts reduces the bucket.
  virtual void BucketStarts(size_t bucket) = 0;
  virtual void WaitBegins() = 0;
  virtual void WaitEnds() = 0;
};

inline void StepMeter::EndStep() {
  running_.steps = 1;
  running_.total_ns = (left_ - began_).count();
  running_.exposed_ns = exposed_.count();
  running_.late_ns = (lateness_.total - counted_late_).count();
  total_ += running_;
  last_ = std::exchange(running_, {});
  began_ = left_;
  exposed_ = {};
  counted_late_ = lateness_.total;
}

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_TIMELINE_STEP_METER_H_
