#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "models/data/batch_maker.h"
#include "models/data/pipeline.h"

namespace dtrun::models {

/// Starts the worker thread, beside `compute_threads` computing threads. If the process may use
/// more CPUs than computing threads, the worker runs on the last CPU. With SCHED_BATCH, the worker
/// does not preempt a computing thread when it wakes up. The worker blocks all signals.
std::thread StartWorker(int compute_threads, const std::function<void()>& body);

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

Iterator::State::State(const ReadPlan& plan, const Position& start) : position_(start) {
  auto maker = std::make_unique<BatchMaker>(std::make_shared<const ReadPlan>(plan), start);
  const auto* prefetch = Find<PrefetchStep>(&plan.pipeline.node());
  if (prefetch == nullptr) {
    maker_ = std::move(maker);
  } else {
    prefetcher_ =
        std::make_unique<Prefetcher>(std::move(maker), prefetch->batches, plan.compute_threads);
  }
}

const Batch* Iterator::State::Next() {
  const auto start = std::chrono::steady_clock::now();
  if (failed_) Seek(position_);
  failed_ = true;
  const Batch* batch = prefetcher_             ? prefetcher_->Next()
                       : maker_->Make(&batch_) ? &batch_
                                               : nullptr;
  failed_ = false;
  position_ = batch != nullptr ? Position{position_.epoch, position_.batch + 1}
                               : Position{position_.epoch + 1, 0};
  wait_ += std::chrono::steady_clock::now() - start;
  return batch;
}

void Iterator::State::Seek(const Position& position) {
  position_ = position;
  failed_ = false;
  prefetcher_ ? prefetcher_->Seek(position) : maker_->Seek(position);
}

Iterator::Iterator(const Pipeline& pipeline, const Position& start)
    : state_(std::make_unique<State>(PlanAlone(pipeline), start)) {}
Iterator::Iterator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Iterator::Iterator(Iterator&&) noexcept = default;
Iterator& Iterator::operator=(Iterator&&) noexcept = default;
Iterator::~Iterator() = default;

const Batch* Iterator::Next() { return state_->Next(); }
void Iterator::Seek(const Position& position) { state_->Seek(position); }
const Position& Iterator::position() const { return state_->position(); }
double Iterator::wait_seconds() const { return state_->wait_seconds(); }

namespace {

// Moves this thread to the process's last CPU, if there are more CPUs than computing threads.
void MoveToSpareCpu(int compute_threads) {
  cpu_set_t own;
  if (compute_threads <= 0 || sched_getaffinity(0, sizeof(own), &own) != 0) return;
  if (CPU_COUNT(&own) <= compute_threads) return;
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &own)) --last;
  cpu_set_t spare;
  CPU_ZERO(&spare);
  CPU_SET(last, &spare);
  sched_setaffinity(0, sizeof(spare), &spare);
}

}  // namespace

std::thread StartWorker(int compute_threads, const std::function<void()>& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits the mask
  std::thread thread([compute_threads, body] {
    pthread_setname_np(pthread_self(), "dtrun-input");
    const sched_param none{};
    sched_setscheduler(0, SCHED_BATCH, &none);
    MoveToSpareCpu(compute_threads);
    body();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace dtrun::models
