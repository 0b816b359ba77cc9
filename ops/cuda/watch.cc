#include "ops/cuda/watch.h"

#include <algorithm>
#include <atomic>

namespace dtrun::ops::cuda {
namespace {

uint32_t Load(uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }

}  // namespace

Watch::Watch(Report* reports, int count, const Engine* engine)
    : reports_(reports), seen_(static_cast<size_t>(count)), engine_(engine) {
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
  const base::Duration pause =
      std::min<base::Duration>(engine_->options().timeout / 8, std::chrono::milliseconds(100));
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, pause, [&] { return ends_; })) {
    const base::TimePoint now = engine_->clock().Now();
    for (size_t i = 0; i < seen_.size(); ++i) Look(reports_[i], seen_[i], now);
  }
}

void Watch::Look(Report& report, Seen& seen, base::TimePoint now) const {
  const uint32_t ended = Load(report.ended), begun = Load(report.begun);
  if (begun == ended || begun != seen.begun) seen.since = now;
  seen.begun = begun;
  if (begun == ended) return;
  Failure failure = kNone;
  if (now - seen.since >= engine_->options().timeout) failure = kTimedOut;
  if (engine_->gave_up()) failure = kLost;
  if (failure != kNone) std::atomic_ref(report.abort).store(failure, std::memory_order_release);
}

}  // namespace dtrun::ops::cuda
