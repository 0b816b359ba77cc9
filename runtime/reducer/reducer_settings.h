#ifndef DTRUN_RUNTIME_REDUCER_REDUCER_SETTINGS_H_
#define DTRUN_RUNTIME_REDUCER_REDUCER_SETTINGS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "dtrun/types.h"
#include "runtime/reducer/autotuner.h"
#include "runtime/reducer/bucket_plan.h"
#include "runtime/reducer/wire_compression.h"

namespace dtrun::runtime {

/// One gradient: with null data it lives in the reducer's block.
struct Gradient {
  std::string name;
  Buffer buffer;
};

/// What a reducer is told; the same on all ranks.
struct ReducerSettings {
  ReduceOp op = ReduceOp::kAverage;
  uint64_t bucket_bytes = 0;  ///< 0: AutoBucketBytes
  Scale scale = {};           ///< of kSum and kAverage, each factor in [1/1024, 1024]
  /// At most `bucket_bytes`; 0: 1 MiB, or `bucket_bytes` if that is less.
  uint64_t first_bucket_bytes = 0;
  /// Gradients that are reduced together, a bucket for each list.
  std::vector<std::vector<size_t>> groups = {};
  /// In place of `groups`: all gradients, in their order, in so many. 0: as `groups` says.
  uint64_t group_count = 0;
  /// Null: as they are.
  std::shared_ptr<WireFormat> wire = nullptr;
  /// After the first step the buckets follow rank 0's order of readiness.
  bool rebuild = true;
  /// Looks for better than all this while steps are done.
  std::optional<AutotuneOptions> autotune = std::nullopt;
  bool on_gpu = false;                 ///< where the gradients lie; filled in by Settled
  const base::Clock* clock = nullptr;  ///< of the statistics; null: the steady clock
};

/// Throws Error kInvalidArgument or kUnavailable, which names what cannot be.
void CheckGradients(const std::vector<Gradient>& gradients);
void CheckSettings(const ReducerSettings& settings, const std::vector<Gradient>& gradients);

/// `settings`, which have been checked, with the size of buckets in place of a 0, and where the
/// gradients lie.
ReducerSettings Settled(
    ReducerSettings settings, const std::vector<Gradient>& gradients, bool within_one_host);

std::vector<GradientSpec> SpecsOf(const std::vector<Gradient>& gradients);

/// Both have been checked.
PlanSettings PlanSettingsOf(
    const ReducerSettings& settings, const std::vector<GradientSpec>& gradients);

/// Everything that has to be the same on all ranks, in lines: the settings, then each gradient.
std::vector<std::string> Lines(const ReducerSettings& settings, const BucketPlan& plan);

}  // namespace dtrun::runtime

#endif
