#ifndef DTRUN_MODELS_GPU_CHOICE_CACHE_H_
#define DTRUN_MODELS_GPU_CHOICE_CACHE_H_

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace dtrun::models {

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

#endif
