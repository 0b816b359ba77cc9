// A wait goes through three stages: it advances what has been started and looks again (spinning,
// while a core is free for that, otherwise giving the core away a few times), then sleeps on the
// rank's doorbell, which peers ring when they have published something. Operations of MPI have
// nobody to ring: while one is active, a sleep is short.

#include "ops/engine.h"

#include <sched.h>

#include <algorithm>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops {
namespace {

constexpr int kSpins =
    4000;  // some tens of microseconds: longer than any peer that runs needs to answer
constexpr int kYields = 16;
constexpr base::Duration kPollPause = std::chrono::microseconds(50);
// A lost wake-up would be a bug; this bounds what it could cost.
constexpr base::Duration kLongestSleep = std::chrono::milliseconds(100);

void RelaxCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

std::string Operation::Describe() const {
  const std::vector<int> missing = Missing();
  return base::Text(
      NameOperation(call_, sequence_, *members_), ", waits for ",
      missing.empty() ? "other ranks to finish it"
                      : base::Text(members_->List(missing), " to call it"));
}

bool Work::Test() {
  if (entry_ == nullptr) return true;
  if (!entry_->done.load(std::memory_order_acquire)) engine_->Poll();
  if (!entry_->done.load(std::memory_order_acquire)) return false;
  if (entry_->error) std::rethrow_exception(entry_->error);
  return true;
}

void Work::Wait() {
  if (entry_ == nullptr) return;
  engine_->Wait(*entry_);
  if (entry_->error) std::rethrow_exception(entry_->error);
}

bool Work::Done() const {
  if (entry_ == nullptr) return true;
  if (!entry_->done.load(std::memory_order_acquire)) return false;
  if (entry_->error) std::rethrow_exception(entry_->error);
  return true;
}

std::vector<int> Work::Missing() const {
  const bool under_way = entry_ != nullptr && !entry_->done.load(std::memory_order_acquire);
  return under_way ? entry_->operation->Missing() : std::vector<int>{};
}

void Work::Abandon() {
  if (entry_ != nullptr) entry_->done.store(true, std::memory_order_release);
}

Engine::Engine(EngineOptions options, const base::Clock& clock, base::LogSink log)
    : options_(options),
      clock_(clock),
      log_(std::move(log)),
      doorbell_(Segment::Create(sizeof(Doorbell))) {}

Engine::~Engine() {
  stop_ = true;
  if (thread_.joinable()) {
    doorbell().Ring();
    thread_.join();
  }
}

Work Engine::Start(std::unique_ptr<Operation> operation) {
  auto entry = std::make_shared<Entry>();
  entry->operation = std::move(operation);
  std::lock_guard lock(mutex_);
  AdvanceEntry(*entry);
  if (!entry->done.load(std::memory_order_relaxed)) {
    active_.push_back(entry);
    if (entry->operation->NeedsPolling()) polling_ = true;
    if (thread_.joinable()) doorbell().Ring();
  }
  return Work(this, std::move(entry));
}

void Engine::Poll() { AdvanceAll(nullptr); }

bool Engine::AdvanceEntry(Entry& entry) {
  bool advanced = false;
  try {
    for (;;) {
      const Operation::Progress progress = entry.operation->Advance();
      if (progress == Operation::Progress::kNone) return advanced;
      advanced = true;
      if (progress == Operation::Progress::kDone) break;
    }
    entry.operation.reset();
    entry.done.store(true, std::memory_order_release);
  } catch (...) {
    Fail(entry, std::current_exception());
  }
  return true;
}

void Engine::Fail(Entry& entry, std::exception_ptr error) {
  entry.error = error;
  entry.done.store(true, std::memory_order_release);
}

bool Engine::AdvanceAll(const Entry* awaited) {
  bool advanced = false, others_done = false;
  {
    std::lock_guard lock(mutex_);
    // By index: an operation that is advanced may start others.
    for (size_t i = 0; i < active_.size(); ++i) {
      Entry* entry = active_[i].get();
      // An operation that was given up (timeout) must not touch its buffers any more.
      if (!entry->done.load(std::memory_order_relaxed)) advanced |= AdvanceEntry(*entry);
      others_done |= entry->done.load(std::memory_order_relaxed) && entry != awaited;
    }
    std::erase_if(
        active_, [](const auto& entry) { return entry->done.load(std::memory_order_relaxed); });
    polling_ = std::any_of(
        active_.begin(), active_.end(), [](const auto& e) { return e->operation->NeedsPolling(); });
  }
  // Another thread of this rank may sleep until what was finished here is done.
  if (others_done) doorbell().Ring();
  return advanced;
}

void Engine::Wait(Entry& entry) {
  const auto done = [&entry] { return entry.done.load(std::memory_order_acquire); };
  const base::TimePoint start = clock_.Now();
  bool warned = false;
  for (int idle = 0; !done();) {
    if (AdvanceAll(&entry)) {
      idle = 0;
      continue;
    }
    ++idle;
    if (options_.may_spin && idle < kSpins) {
      RelaxCpu();
      continue;
    }
    if (!options_.may_spin && idle < kYields) {
      ::sched_yield();
      continue;
    }
    const base::Duration left = CheckStall(entry, start, warned);
    const uint32_t ticket = doorbell().Prepare();
    if (AdvanceAll(&entry) || done()) {
      doorbell().Cancel();
      continue;
    }
    doorbell().Sleep(ticket, std::min(left, polling_ ? kPollPause : kLongestSleep));
  }
}

// Returns how long the wait may last before this has to be called again.
base::Duration Engine::CheckStall(Entry& entry, base::TimePoint start, bool& warned) {
  const base::Duration waited = clock_.Now() - start;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(waited).count();
  if (!warned && waited >= options_.stall_warning) {
    warned = true;
    std::lock_guard lock(mutex_);
    if (!entry.done)
      log_(
          base::LogLevel::kWarning,
          base::Text("waiting for ", seconds, " s: ", entry.operation->Describe()));
  }
  if (waited >= options_.timeout) {
    std::lock_guard lock(mutex_);
    if (!entry.done) {
      const Error error(
          ErrorCode::kTimeout,
          base::Text("gave up after ", seconds, " s: ", entry.operation->Describe()));
      entry.operation->GiveUp();
      Fail(entry, std::make_exception_ptr(error));
    }
    return base::Duration::zero();
  }
  return (warned ? options_.timeout : std::min(options_.stall_warning, options_.timeout)) - waited;
}

void Engine::StartThread() {
  std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { RunThread(); });
}

void Engine::RunThread() {
  while (!stop_) {
    const uint32_t ticket = doorbell().Prepare();
    if (AdvanceAll(nullptr)) {
      doorbell().Cancel();
      continue;
    }
    doorbell().Sleep(ticket, polling_ ? kPollPause : kLongestSleep);
  }
}

}  // namespace dtrun::ops
