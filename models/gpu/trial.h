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

/// Trials on the device that select one of several ways to compute the same result.

/// Returns the milliseconds of the work that `enqueue` enqueues into `stream`: the shortest of
/// several runs in a row, after one untimed run. Waits for the stream. Throws the errors of
/// `enqueue`, also if the work cannot be captured into a graph.
double MillisecondsOf(const gpu::Stream& stream, const std::function<void()>& enqueue);

/// The rule that selects one of several ways to compute the same result.
enum class Selection {
  kFirst,    ///< the first proposed way that works: the same in every process
  kFastest,  ///< the fastest way in a trial
};

struct Selected {
  size_t candidate = 0;
  double milliseconds = 0;
};

/// Tries candidates 0, 1, ... count - 1 in this order. Selection::kFirst ends with the first usable
/// candidate, Selection::kFastest with the twelfth. `milliseconds` returns the time of a candidate,
/// or throws Error if the candidate cannot be used. Then `problem` gets the message. A candidate
/// replaces an earlier one only if it is more than 2 % faster, because smaller differences are
/// chance. Returns none if no tried candidate can be used.
std::optional<Selected> SelectCandidate(
    size_t count, Selection selection, const std::function<double(size_t)>& milliseconds,
    std::string& problem);

/// Choices by key. Times differ from trial to trial, and another algorithm may give other bits. So
/// all later requests for a key get its first choice. Thread-safe.
template <typename Choice>
class ChoiceCache {
 public:
  /// Returns the choice for `key`. For a new key, calls `choose`, while other threads wait. If
  /// `choose` throws, Get throws the same error, and the key remains new.
  Choice Get(const std::string& key, const std::function<Choice()>& choose) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = choices_.find(key);
    if (found == choices_.end()) found = choices_.emplace(key, choose()).first;
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Choice> choices_;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_TRIAL_H_
