#ifndef DTRUN_RUNTIME_REDUCER_REDUCER_SETTINGS_H_
#define DTRUN_RUNTIME_REDUCER_REDUCER_SETTINGS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "dtrun/types.h"
#include "runtime/reducer/autotuner.h"
#include "runtime/reducer/bucket_plan.h"

namespace dtrun::runtime {

/// One gradient. With null data, it lives in the reducer's block.
struct Gradient {
  std::string name;
  Buffer buffer;
};

/// The format of buckets while they are reduced. Each rank compresses its buckets of f32 and f64.
/// The compressed elements are reduced one by one, and the result is decompressed. A format may
/// keep state per bucket.
class WireFormat {
 public:
  virtual ~WireFormat() = default;
  /// For people and for comparison between ranks: "f16", "format 'signs' of i8".
  virtual std::string description() const = 0;
  virtual DType dtype() const = 0;
  /// The number of elements of the bucket on the wire. `gradients` has no data. Called for each
  /// bucket, in order, when a plan is made. Then the state of all buckets begins anew.
  virtual uint64_t Count(size_t bucket, const Buffer& gradients) = 0;
  virtual void Compress(size_t bucket, const Buffer& gradients, const Buffer& wire) = 0;
  virtual void Decompress(size_t bucket, const Buffer& wire, const Buffer& gradients) = 0;
  /// True if element k on the wire is element k of the gradients. Then a bucket may come in pieces.
  virtual bool IsElementwise() const { return false; }
};

/// Creates a format that rounds to f16 or bf16 and converts back. It rounds to nearest, ties to
/// even.
std::shared_ptr<WireFormat> CreateCast(DType wire);

/// True if buckets of this dtype are compressed.
bool IsCompressed(DType dtype);

/// True if the format's elements are floats, like the flags.
bool CarriesFlags(const WireFormat& format);

/// The settings of a reducer. The same on all ranks.
struct ReducerSettings {
  ReduceOp op = ReduceOp::kAverage;
  uint64_t bucket_bytes = 0;  ///< 0: AutoBucketBytes
  Scale scale = {};           ///< for kSum and kAverage, each factor in [1/1024, 1024]
  /// At most `bucket_bytes`; 0: 1 MiB, or `bucket_bytes` if that is less.
  uint64_t first_bucket_bytes = 0;
  /// Lists of gradients that are reduced together, in one bucket per list.
  std::vector<std::vector<size_t>> groups = {};
  /// An alternative to `groups`: all gradients, in their order, in this number of groups. 0: use
  /// `groups`.
  uint64_t group_count = 0;
  /// The format on the wire. Null: gradients keep their format.
  std::shared_ptr<WireFormat> wire = nullptr;
  /// True: after the first step, the buckets follow rank 0's ready order.
  bool rebuild = true;
  /// Tunes these settings while the trainer trains. nullopt: no tuning.
  std::optional<AutotuneOptions> autotune = std::nullopt;
  bool on_gpu = false;        ///< the gradients lie on a GPU; set by Settled
  uint64_t single_bytes = 0;  ///< a gradient of this size has its own bucket; set by Settled
  const base::Clock* clock = nullptr;  ///< for the statistics; null: the steady clock
};

/// Check the arguments. Throw Error kInvalidArgument or kUnavailable, which names the fault.
void CheckGradients(const std::vector<Gradient>& gradients);
void CheckSettings(const ReducerSettings& settings, const std::vector<Gradient>& gradients);

/// Completes checked settings: chooses the bucket size if it is 0, and sets the last two.
ReducerSettings Settled(
    ReducerSettings settings, const std::vector<Gradient>& gradients, bool within_one_host);

std::vector<GradientSpec> SpecsOf(const std::vector<Gradient>& gradients);

/// The arguments have been checked.
PlanSettings PlanSettingsOf(
    const ReducerSettings& settings, const std::vector<GradientSpec>& gradients);

/// The facts that must be the same on all ranks, as lines: the settings, then each gradient.
std::vector<std::string> Lines(const ReducerSettings& settings, const BucketPlan& plan);

}  // namespace dtrun::runtime

#endif
