#ifndef DTRUN_LAUNCHER_SUPPORT_POLLER_H_
#define DTRUN_LAUNCHER_SUPPORT_POLLER_H_

#include <poll.h>

#include <chrono>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace dtrun::launcher {

/// Calls back when file descriptors are ready. dtrun and its agents wait for events only here.
class Poller {
 public:
  /// `events` and the callback's argument are those of poll(2). A descriptor has one watch: a new
  /// one replaces it. Without events, the callback gets only POLLHUP and POLLERR. Callbacks may
  /// call Watch and Forget.
  void Watch(int file, short events, std::function<void(short)> callback) {
    watches_[file] = {events, std::move(callback)};
  }
  void Forget(int file) { watches_.erase(file); }

  /// Waits until a descriptor is ready, for at most `timeout` (negative: without a limit), and
  /// calls back.
  void Wait(std::chrono::milliseconds timeout);

 private:
  struct Entry {
    short events;
    std::function<void(short)> callback;
  };
  std::map<int, Entry> watches_;
};

inline void Poller::Wait(std::chrono::milliseconds timeout) {
  std::vector<pollfd> files;
  for (const auto& [file, entry] : watches_) files.push_back({file, entry.events, 0});
  if (poll(files.data(), files.size(), static_cast<int>(timeout.count())) <= 0) return;
  for (const pollfd& ready : files) {
    if (ready.revents == 0) continue;
    const auto entry = watches_.find(ready.fd);
    if (entry == watches_.end()) continue;  // a callback has forgotten it
    const std::function<void(short)> callback = entry->second.callback;
    callback(ready.revents);
  }
}

}  // namespace dtrun::launcher

#endif
