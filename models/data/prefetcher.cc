#include "models/data/prefetcher.h"

#include <utility>

#include "models/data/worker_thread.h"

namespace dtrun::models {

Prefetcher::Prefetcher(std::unique_ptr<BatchMaker> maker, uint64_t batches, int compute_threads)
    : maker_(std::move(maker)), compute_threads_(compute_threads), ring_(batches + 1) {}

Prefetcher::~Prefetcher() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

const Batch* Prefetcher::Next() {
  if (!thread_.joinable()) thread_ = StartWorker(compute_threads_, [this] { Run(); });
  std::unique_lock lock(mutex_);
  if (held_) {
    held_ = false;
    changed_.notify_all();
  }
  changed_.wait(lock, [this] { return ready() > 0; });
  Result& result = At(taken_++);
  held_ = true;
  if (result.error) std::rethrow_exception(std::exchange(result.error, nullptr));
  return result.end_of_epoch ? nullptr : &result.batch;
}

void Prefetcher::Seek(const Position& position) {
  std::unique_lock lock(mutex_);
  paused_ = true;
  changed_.wait(lock, [this] { return !working_; });
  made_ = taken_ = 0;
  held_ = false;
  maker_->Seek(position);
  paused_ = false;
  changed_.notify_all();
}

void Prefetcher::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(
        lock, [this] { return stop_ || (!paused_ && ready() + (held_ ? 1 : 0) < ring_.size()); });
    if (stop_) return;
    working_ = true;
    Result& result = At(made_);
    lock.unlock();
    MakeOne(result);
    lock.lock();
    working_ = false;
    ++made_;
    paused_ |= result.error != nullptr;
    changed_.notify_all();
  }
}

void Prefetcher::MakeOne(Result& result) {
  result.error = nullptr;
  try {
    result.end_of_epoch = !maker_->Make(&result.batch);
  } catch (...) {
    result.error = std::current_exception();
  }
}

}  // namespace dtrun::models
