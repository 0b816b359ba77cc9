#include "launcher/support/poller.h"

#include <poll.h>

#include <utility>
#include <vector>

namespace dtrun::launcher {

void Poller::Watch(int file, short events, std::function<void(short)> callback) {
  watches_[file] = {events, std::move(callback)};
}

void Poller::Wait(std::chrono::milliseconds timeout) {
  std::vector<pollfd> files;
  for (const auto& [file, entry] : watches_) files.push_back({file, entry.events, 0});
  if (poll(files.data(), files.size(), static_cast<int>(timeout.count())) <= 0) return;
  for (const pollfd& ready : files) {
    if (ready.revents == 0) continue;
    const auto entry = watches_.find(ready.fd);
    if (entry == watches_.end()) continue;  // another callback forgot it
    const std::function<void(short)> callback = entry->second.callback;
    callback(ready.revents);
  }
}

}  // namespace dtrun::launcher
