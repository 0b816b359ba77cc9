#include "ops/wire/waker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace dtrun::ops::wire {

Waker::Waker(int file, std::shared_ptr<Segment> doorbell)
    : file_(file), doorbell_(std::move(doorbell)), stopper_(::eventfd(0, EFD_CLOEXEC)) {
  if (stopper_.get() < 0) ThrowErrno("eventfd");
  thread_ = std::thread([this] { Run(); });
}

Waker::~Waker() {
  stop_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stopper_.get(), &one, sizeof one);
  Arm();
  thread_.join();
}

void Waker::Arm() {
  if (armed_.exchange(true, std::memory_order_acq_rel)) return;
  armed_.notify_one();
}

void Waker::Run() {
  for (;;) {
    armed_.wait(false, std::memory_order_acquire);
    pollfd files[] = {{file_, POLLIN, 0}, {stopper_.get(), POLLIN, 0}};
    if (::poll(files, 2, -1) < 0) continue;
    if (stop_) return;
    armed_.store(false, std::memory_order_release);
    reinterpret_cast<Doorbell*>(doorbell_->data())->Ring();
  }
}

}  // namespace dtrun::ops::wire
