#ifndef DTRUN_RUNTIME_REDUCER_AUTOTUNER_H_
#define DTRUN_RUNTIME_REDUCER_AUTOTUNER_H_

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "base/process.h"
#include "ops/communicator/communicator_base.h"

namespace dtrun::runtime {

/// A setting, and the values to try for it.
struct TuningDimension {
  std::string name;
  std::vector<uint64_t> values;
  size_t start = 0;  ///< index of the default in `values`
};

struct TuningSearchOptions {
  /// The number of trials of each value. The values take turns, so that a change outside affects
  /// all values alike.
  int rounds = 5;
  /// The fraction by which a value must be faster than the default to replace it. It keeps noise
  /// from changing a setting.
  double least_gain = 0.02;
};

/// Searches a box of settings for the fastest ones, by one pass of coordinate descent. Dimensions
/// are searched one after the other, each from the best values of the dimensions before it. The
/// search decides by medians alone, so equal scores give equal results on every rank. Pure.
///
///   while (!search.done()) search.Record(SecondsOfAStepWith(search.trial()));
class TuningSearch {
 public:
  /// Every dimension has values, and its `start` is the index of one of them.
  explicit TuningSearch(
      std::vector<TuningDimension> dimensions, const TuningSearchOptions& options = {});

  bool done() const { return dimension_ == dimensions_.size(); }
  /// The value of each dimension in the next trial; if done, in the result.
  const std::vector<uint64_t>& trial() const { return trial_; }
  /// Records the time of a step with `trial()`. Only if not done.
  void Record(double seconds);
  /// The median time of the result when it was chosen. 0 until the first dimension is complete.
  double seconds() const { return seconds_; }
  /// The number of trials in the whole search.
  uint64_t trial_count() const;

 private:
  size_t Fastest() const;
  void EndDimension();
  void SkipWithoutChoice();

  std::vector<TuningDimension> dimensions_;
  TuningSearchOptions options_;
  std::vector<uint64_t> trial_;
  double seconds_ = 0;

  // State of the dimension that is searched.
  size_t dimension_ = 0, value_ = 0;
  std::vector<std::vector<double>> scores_;  // by value
};

/// The settings of gradient reduction that can be tuned.
struct Tuning {
  uint64_t bucket_bytes = 0;
  ops::Route route = {};

  bool operator==(const Tuning&) const = default;
};

struct AutotuneOptions {
  /// The CSV file with one line per trial; "": none.
  std::string log_file = {};
  /// The file that keeps results for later jobs; "": none. Read at the start. If it has a result
  /// for this job, the autotuner uses that result and searches no more.
  std::string cache_file = {};
  /// True: other wire types are tried too. They round, so they change the results of training.
  bool tune_wire = false;
};

/// Finds the tuning with the fastest steps during training. After the first few steps, each trial
/// takes two steps: one to settle, and one that is timed by the slowest rank. At the end, the
/// tuning is frozen. All ranks get the same result. Only rank 0 uses the files. Not thread-safe.
class Autotuner {
 public:
  /// Collective. `subject` describes the reduced data in a few words. A cached result holds for one
  /// subject, placement of ranks, and backend. Throws Error, on all ranks: kSystem if a file cannot
  /// be written, kInvalidArgument if the cache file was not written by Autotuner.
  Autotuner(
      ops::Communicator& communicator, const Tuning& defaults, const std::string& subject,
      const AutotuneOptions& options);

  /// The tuning of the next step.
  const Tuning& tuning() const { return tuning_; }
  bool frozen() const { return frozen_; }
  /// The number of steps until the tuning is frozen, without a cached result.
  uint64_t step_count() const;

  /// Reports that a step with `tuning()` took `duration`. Collective until frozen. Returns true if
  /// tuning() has changed. Throws kSystem, on all ranks, if a file cannot be written.
  bool EndStep(base::Duration duration);

 private:
  void UseCache(const std::string& text);
  void Freeze();
  void Log(const char* state, double seconds);
  std::string OpenFiles();
  std::string BesideCache() const;
  void CheckOnRank0(const std::string& error);
  std::string WriteCache() const;

  ops::Communicator& communicator_;
  AutotuneOptions options_;
  std::string key_;
  TuningSearch search_;
  Tuning tuning_;
  bool searching_ = false, frozen_ = false;
  uint64_t steps_ = 0;
  uint64_t settling_;  // steps before the next one that is timed
  std::ofstream log_;
};

/// The box to search, with the defaults in it. Bucket sizes reach from 1/8 to 8 times the default,
/// within 64 KiB and 64 MiB. If the communicator has routes, the box also has both paths, and chunk
/// sizes from 1/8 to 4 times the default within the same limits. With `tune_wire`, it then has all
/// wire types.
std::vector<TuningDimension> TuningBox(const Tuning& defaults, bool has_routes, bool tune_wire);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_REDUCER_AUTOTUNER_H_
