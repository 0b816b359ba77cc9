#ifndef DTRUN_MODELS_GPU_TRIAL_H_
#define DTRUN_MODELS_GPU_TRIAL_H_

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "gpu/stream.h"

namespace dtrun::models {

/// Trials on the device that find the fastest of several ways to compute the same result.

/// Returns the milliseconds of the work that `enqueue` enqueues into `stream`. The work is launched
/// as a CUDA graph, as in training. The result is the shortest of several launches in a row, after
/// one untimed run. Waits for the stream. Throws the errors of `enqueue`, and Error kSystem if the
/// work cannot be in a graph.
double MillisecondsInGraph(const gpu::Stream& stream, const std::function<void()>& enqueue);

/// The rule that selects one of several ways to compute the same result.
enum class Selection {
  kFastest,  ///< the fastest way in a trial
  kFirst,    ///< the first proposed way that works: the same in every process
};

struct TrialLimits {
  size_t most = 12;    ///< usable candidates to time
  double seconds = 5;  ///< after this time, no further candidate starts if one is usable
};

struct Fastest {
  size_t candidate = 0;
  double milliseconds = 0;
};

/// With Selection::kFirst, the trial ends with the first usable candidate.
inline TrialLimits LimitsOf(Selection selection) {
  return selection == Selection::kFirst ? TrialLimits{.seconds = 0} : TrialLimits{};
}

/// A time counts as shorter than another time only if it is below this share of the other time.
/// Smaller differences are chance.
inline constexpr double kChance = 0.98;

/// Times candidates 0, 1, ... count - 1 in this order and returns the fastest. `try_one` returns
/// the milliseconds of a candidate, or infinity if the candidate cannot be used. A candidate
/// replaces an earlier one only if its time counts as shorter (kChance). Returns none if no tried
/// candidate can be used.
std::optional<Fastest> FindFastest(
    size_t count, const TrialLimits& limits, const std::function<double(size_t)>& try_one);

/// Choices that were made by speed, by key. Times differ from trial to trial, and another algorithm
/// may give other bits. So all later requests for a key get its first choice. Thread-safe.
template <typename Choice>
class ChoiceCache {
 public:
  /// Returns the choice for `key`. For a new key, calls `choose`, while other threads that need the
  /// same key wait. If `choose` throws, Get throws the same error, and the key remains new.
  Choice Get(const std::string& key, const std::function<Choice()>& choose) {
    Entry& entry = EntryOf(key);
    const std::lock_guard<std::mutex> lock(entry.mutex);
    if (!entry.choice) entry.choice = choose();
    return *entry.choice;
  }

 private:
  struct Entry {
    std::mutex mutex;
    std::optional<Choice> choice;
  };

  // The address of an entry never changes.
  Entry& EntryOf(const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return entries_[key];
  }

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_TRIAL_H_
