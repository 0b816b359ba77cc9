#ifndef DTRUN_LAUNCHER_SUPPORT_POLLER_H_
#define DTRUN_LAUNCHER_SUPPORT_POLLER_H_

#include <chrono>
#include <functional>
#include <map>

namespace dtrun::launcher {

/// Calls back when file descriptors are ready: the one place where dtrun or an agent waits.
class Poller {
 public:
  /// `events` and what the callback gets are those of poll(2). One watch per descriptor: another
  /// one replaces it; with no events it only learns of POLLHUP and POLLERR. A callback may watch
  /// and forget.
  void Watch(int file, short events, std::function<void(short)> callback);
  void Forget(int file) { watches_.erase(file); }

  /// Waits for something to be ready, `timeout` at most (negative: without end), and calls back.
  void Wait(std::chrono::milliseconds timeout);

 private:
  struct Entry {
    short events;
    std::function<void(short)> callback;
  };
  std::map<int, Entry> watches_;
};

}  // namespace dtrun::launcher

#endif
