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

/// Something that can be set, and what to try for it.
struct TuningDimension {
  std::string name;
  std::vector<uint64_t> values;
  size_t start = 0;  ///< where the search begins: the default is in the box
};

struct TuningSearchOptions {
  /// Each value is tried so often, in turn with the others: what changes meanwhile changes for all.
  int rounds = 5;
  /// By how much another value has to be faster than the default to take its place, as a fraction:
  /// noise moves nothing.
  double least_gain = 0.02;
};

/// Looks for the fastest of a box of settings, one dimension after the other, each from where the
/// dimensions before it have come to (coordinate descent, once through). It decides by medians
/// alone: the same scores give the same result on every rank. Pure.
///
///   while (!search.done()) search.Record(SecondsOfAStepWith(search.trial()));
class TuningSearch {
 public:
  /// `dimensions` have values, and `start` is one of them.
  explicit TuningSearch(
      std::vector<TuningDimension> dimensions, const TuningSearchOptions& options = {});

  bool done() const { return dimension_ == dimensions_.size(); }
  /// A value for each dimension: what to try next; when done, the best.
  const std::vector<uint64_t>& trial() const { return trial_; }
  /// How long a step took with `trial()`. Not when done.
  void Record(double seconds);
  /// The median that the result had when it was chosen; 0 before the first dimension is through.
  double seconds() const { return seconds_; }
  /// Trials of the whole search.
  uint64_t trial_count() const;

 private:
  size_t Fastest() const;
  void EndDimension();
  void SkipWithoutChoice();

  std::vector<TuningDimension> dimensions_;
  TuningSearchOptions options_;
  std::vector<uint64_t> trial_;
  double seconds_ = 0;

  // Of the dimension that is searched.
  size_t dimension_ = 0, value_ = 0;
  std::vector<std::vector<double>> scores_;  // by value
};

/// What can be chosen about the reduction of gradients.
struct Tuning {
  uint64_t bucket_bytes = 0;
  ops::Route route = {};

  bool operator==(const Tuning&) const = default;
};

struct AutotuneOptions {
  /// Where each trial is written to, a line of CSV; "": nowhere.
  std::string log_file = {};
  /// Where results are kept, by what they hold for; "": nowhere. Read at the start: a result that
  /// is there is used, and nothing is searched.
  std::string cache_file = {};
  /// Other wire types are tried too. They round, so what training computes changes.
  bool tune_wire = false;
};

/// Looks for the tuning with the fastest steps while a trainer trains: after a few steps, each
/// trial is one step to settle and one that counts, by the slowest rank. Then it is frozen for
/// good. All ranks come to the same result. Only rank 0 touches the files. Not thread-safe.
class Autotuner {
 public:
  /// Collective. `subject` says what the result holds for besides the ranks' placement and backend:
  /// a word or two on what is reduced. Throws on all ranks: kSystem when the log cannot be written,
  /// kInvalidArgument when the cache does not hold what Autotuner writes.
  Autotuner(
      ops::Communicator& communicator, const Tuning& defaults, const std::string& subject,
      const AutotuneOptions& options);

  /// For the next step.
  const Tuning& tuning() const { return tuning_; }
  bool frozen() const { return frozen_; }
  /// Steps until it is frozen, if it starts from nothing.
  uint64_t step_count() const;

  /// A step with `tuning()` took `duration`. Collective until frozen; returns whether tuning() has
  /// changed. Throws kSystem, on all ranks, when a result cannot be written.
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
  uint64_t settling_;  // steps that do not count
  std::ofstream log_;
};

/// The box that is searched, with the defaults in it: buckets from an eighth to eight times the
/// default, within 64 KiB and 64 MiB; where the communicator has a choice of routes, the ways that
/// there are, chunks from an eighth to four times the default, and with `tune_wire` all wire types.
std::vector<TuningDimension> TuningBox(const Tuning& defaults, bool has_routes, bool tune_wire);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_REDUCER_AUTOTUNER_H_
