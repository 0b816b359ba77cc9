#include "ops/cuda/watch.h"

#include <algorithm>
#include <atomic>

namespace dtrun::ops::cuda {
namespace {

uint32_t Load(uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }

}  // namespace

Watch::Watch(Report& report, const Engine* engine) : report_(report), engine_(engine) {
  if (engine_ != nullptr) thread_ = std::thread([this] { Run(); });
}

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watch::Run() {
  const base::Duration timeout = engine_->options().timeout;
  const base::Duration pause =
      std::min<base::Duration>(timeout / 8, std::chrono::milliseconds(100));
  uint32_t seen = Load(report_.ended);
  base::TimePoint since = engine_->clock().Now();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, pause, [&] { return ends_; })) {
    const uint32_t ended = Load(report_.ended), begun = Load(report_.begun);
    const base::TimePoint now = engine_->clock().Now();
    if (begun == ended || begun != seen) since = now;
    seen = begun;
    if (begun == ended) continue;
    Failure failure = kNone;
    if (now - since >= timeout) failure = kTimedOut;
    if (engine_->gave_up()) failure = kLost;
    if (failure == kNone) continue;
    std::atomic_ref(report_.abort).store(failure, std::memory_order_release);
    return;
  }
}

}  // namespace dtrun::ops::cuda
