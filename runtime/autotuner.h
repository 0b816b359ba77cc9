#ifndef DTRUN_RUNTIME_AUTOTUNER_H_
#define DTRUN_RUNTIME_AUTOTUNER_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ops/communicator.h"
#include "ops/route.h"
#include "runtime/tuning_search.h"

namespace dtrun::runtime {

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

#endif
