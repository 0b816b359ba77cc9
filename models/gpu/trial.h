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

/// Which of several ways to compute the same is the fastest: found out on the device itself.

/// Milliseconds of what `enqueue` enqueues into `stream`, as a part of a CUDA graph, which is how
/// it will be launched: the shortest of some launches in a row, after one that does not count.
/// Waits for the stream. Throws what `enqueue` throws, and Error kSystem when it cannot be in a
/// graph.
double MillisecondsInGraph(const gpu::Stream& stream, const std::function<void()>& enqueue);

/// Of ways to compute the same: which one is taken.
enum class Selection {
  kFastest,  ///< as timed
  kFirst,    ///< that the library proposes and that works: the same in every process
};

struct TrialLimits {
  size_t most = 12;    ///< candidates
  double seconds = 5;  ///< after so many no further candidate is begun with, if there is one
};

struct Fastest {
  size_t candidate = 0;
  double milliseconds = 0;
};

/// None is tried for its speed's sake when the first one is wanted.
inline TrialLimits LimitsOf(Selection selection) {
  return selection == Selection::kFirst ? TrialLimits{.seconds = 0} : TrialLimits{};
}

/// A time counts as shorter than another below this share of it: the rest is chance.
inline constexpr double kChance = 0.98;

/// The fastest of candidates 0, 1, ... count - 1, which are tried in this order: `try_one` returns
/// the milliseconds of one, infinity if it cannot be used. One that is faster by chance alone
/// does not take the place of one before it. None: no candidate that was tried can be used.
std::optional<Fastest> FindFastest(
    size_t count, const TrialLimits& limits, const std::function<double(size_t)>& try_one);

/// What was chosen by its speed, by what it was chosen for. Times differ from try to try, and
/// another algorithm may mean other bits, so one that was chosen is used for the same again.
/// Thread-safe.
template <typename Choice>
class ChoiceCache {
 public:
  /// What was chosen for `key`. For a new one that is what `choose` returns, while other threads
  /// that want the same wait for it; if it throws, so does this, and the key is as new.
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

  // Where it is once and for all.
  Entry& EntryOf(const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return entries_[key];
  }

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_TRIAL_H_
