// A waiting thread repeats three stages:
//
//   1. It advances all operations and drivers.
//   2. If nothing has advanced, it looks again: it spins if a core is free, otherwise it yields the
//      core a few times.
//   3. Then it sleeps on the rank's doorbell. Peers ring the doorbell when they have published
//      something. Drivers are asked to ring it, too. MPI rings no doorbell: while an MPI operation
//      is active, the sleep is short.
//
// Deadlines cost almost nothing while operations advance. Each operation stores its start time,
// which its flight record needs anyway. The engine stores the earliest time at which any operation
// could be late. The engine reads the clock when an operation starts, when Poll advances nothing,
// and before a sleep. An operation that has advanced since the last look is not late. If a sleep
// took much too long, the whole process was stopped: that time makes no operation late.

#include "ops/engine/progress_engine.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops {
namespace {

constexpr int kSpins =
    4000;  // some tens of microseconds: longer than any running peer needs to answer
constexpr int kSlowSpins = 100;  // as long, if each look takes a system call
constexpr int kYields = 64;
constexpr int kUntimedTurns = 32;
constexpr base::Duration kPollPause = std::chrono::microseconds(50);
// A lost wake-up would be a bug. This bounds its cost.
constexpr base::Duration kLongestSleep = std::chrono::milliseconds(100);
// A thread that wakes up this much too late was stopped (Ctrl-Z), or its machine was.
constexpr base::Duration kLongestDelay = std::chrono::seconds(1);
// A leaving rank waits this long for the other ranks before it tells them. The other ranks then
// wait this long before they believe it: a farewell may overtake earlier calls of the same rank.
constexpr base::Duration kFarewell = std::chrono::milliseconds(500);
// The same wait, if the leaving rank is on another host. Its last calls can arrive after its
// farewell, because they take another connection. A connection that was silent for a moment repeats
// a lost message only seconds later.
constexpr base::Duration kFarewellOfHosts = std::chrono::seconds(10);

// A thread that advances something every time looks at the clock once in this many turns.
constexpr uint32_t kTurnsPerLook = 1024;

int64_t Seconds(base::Duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

// True if the later operation waits for the earlier one, or for the same ranks.
bool SameQueue(const Operation& a, const Operation& b) {
  const auto kind = [](const Operation& o) { return static_cast<CollectiveKind>(o.call().kind); };
  if (&a.members() != &b.members()) return false;
  if (!base::IsMessage(kind(a)) && !base::IsMessage(kind(b))) return true;
  return kind(a) == kind(b) && a.call().root == b.call().root;
}

void RelaxCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

const char* KindOf(const Operation& operation) {
  return base::NameOf(static_cast<CollectiveKind>(operation.call().kind));
}

// The error with the kind of the operation that it ends.
std::exception_ptr ErrorOf(const Operation& operation, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& found) {
    if (!found.operation().empty()) return error;
    return std::make_exception_ptr(
        Error(found.code(), found.what(), found.ranks(), KindOf(operation)));
  } catch (...) {
    return error;
  }
}

}  // namespace

std::string Operation::DescribeWaitFor(const std::vector<int>& missing) const {
  const std::vector<int> awaited = missing.empty() ? Awaited() : missing;
  return base::Text(
      NameOperation(call_, sequence_, *members_), ", waits for ",
      awaited.empty() ? "other ranks" : members_->List(awaited),
      missing.empty() ? " to finish it" : " to call it");
}

bool Work::Test() {
  if (entry_ == nullptr) return true;
  entry_->watched.store(true, std::memory_order_relaxed);
  if (!entry_->done.load(std::memory_order_acquire)) engine_->Poll();
  if (!entry_->done.load(std::memory_order_acquire)) return false;
  if (entry_->error) std::rethrow_exception(entry_->error);
  return true;
}

void Work::Wait() {
  if (entry_ == nullptr) return;
  entry_->watched.store(true, std::memory_order_relaxed);
  engine_->Wait(*entry_);
  if (entry_->error) std::rethrow_exception(entry_->error);
}

void Work::Wait(Lateness& lateness) {
  if (entry_ == nullptr) return;
  if (!entry_->done.load(std::memory_order_acquire)) engine_->WatchArrival(*entry_);
  entry_->watched.store(true, std::memory_order_relaxed);
  engine_->Wait(*entry_);
  if (entry_->arrival != nullptr) entry_->arrival->AddTo(lateness);
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

std::vector<int> Work::Awaited() const {
  if (entry_ == nullptr || entry_->done.load(std::memory_order_acquire)) return {};
  const Operation& operation = *entry_->operation;
  std::vector<int> ranks = operation.Missing();
  if (ranks.empty()) ranks = operation.Awaited();
  return operation.members().InWorld(ranks);
}

void Work::SetPurpose(std::function<std::string()> purpose) {
  if (entry_ == nullptr) return;
  std::lock_guard lock(engine_->mutex_);
  entry_->purpose = std::move(purpose);
}

void Work::Abandon() {
  if (entry_ != nullptr) entry_->done.store(true, std::memory_order_release);
}

Engine::Engine(EngineOptions options, const base::Clock& clock, base::LogSink log)
    : options_(std::move(options)),
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
  entry->is_part = advancing_ != nullptr;
  if (entry->is_part) entry->whole = advancing_->weak_from_this();
  const base::TimePoint now = entry->is_part ? base::TimePoint() : clock_.Now();
  entry->since = now;
  RecordStart(*entry);
  if (lost_all_) {
    Fail(*entry, LostAllError(*entry->operation));
  } else if (const Lost* lost = LostOf(*entry->operation)) {
    Fail(*entry, std::make_exception_ptr(LostError(*lost, *entry->operation)));
  } else {
    AdvanceEntry(*entry);
  }
  if (!entry->done.load(std::memory_order_relaxed)) {
    entry->advanced = false;  // from now on, other ranks have to act
    active_.push_back(entry);
    if (!entry->is_part) next_alarm_ = std::min(next_alarm_, AlarmOf(*entry, now));
    if (entry->operation->NeedsPolling()) polling_ = true;
    if (thread_.joinable()) doorbell().Ring();
  }
  if (!entry->is_part && now >= next_alarm_) CheckDeadlines(now);
  return Work(this, std::move(entry));
}

void Engine::Poll() {
  if (!AdvanceAll(nullptr)) LookAtClock(nullptr);
}

void Engine::Wake() {
  if (thread_.joinable()) doorbell().Ring();
}

void Engine::AddDriver(std::shared_ptr<Driver> driver) {
  std::lock_guard lock(mutex_);
  if (driver->LooksSlowly()) slow_looks_ = true;
  if (lost_all_) driver->LosePeers();
  drivers_.push_back(std::move(driver));
}

void Engine::RemoveDriver(const Driver& driver) {
  std::lock_guard lock(mutex_);
  std::erase_if(drivers_, [&](const auto& other) { return other.get() == &driver; });
}

bool Engine::AdvanceEntry(Entry& entry) {
  Entry* const outer = std::exchange(advancing_, &entry);
  const bool advanced = AdvanceWhileItCan(entry);
  advancing_ = outer;
  if (advanced && entry.is_part) {
    const auto whole = entry.whole.lock();
    // Before all ranks have called the operation, its parts only ask for the ranks. That is no
    // progress.
    if (whole != nullptr && whole->operation != nullptr && whole->operation->moving()) {
      whole->advanced = true;
    }
  }
  return advanced;
}

bool Engine::AdvanceWhileItCan(Entry& entry) {
  bool advanced = false;
  try {
    for (;;) {
      const Operation::Progress progress = entry.operation->Advance();
      if (progress == Operation::Progress::kDone) break;
      if (progress == Operation::Progress::kNone) {
        entry.advanced |= advanced;
        RecordMoving(entry);
        return advanced;
      }
      advanced = true;
    }
    RecordEnd(entry, base::FlightState::kDone);
    entry.operation.reset();
    entry.done.store(true, std::memory_order_release);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPeerLost) {
      Lose(entry, error);
    }
    Fail(entry, std::current_exception());
  } catch (...) {
    Fail(entry, std::current_exception());
  }
  return true;
}

void Engine::Fail(Entry& entry, std::exception_ptr error) {
  RecordEnd(entry, base::FlightState::kFailed);
  // An operation that was abandoned is gone: its error says the kind already.
  entry.error = entry.operation == nullptr ? error : ErrorOf(*entry.operation, error);
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
    }
    for (const auto& driver : drivers_) {
      if (driver->Advance()) advanced = others_done = true;
    }
    if (advanced && ++turns_ % kTurnsPerLook == 0) {
      const base::TimePoint now = clock_.Now();
      CheckDeadlines(now);
      for (const auto& driver : drivers_) driver->Look(now);
    }
    for (const auto& entry : active_) {
      others_done |= entry->done.load(std::memory_order_relaxed) && entry.get() != awaited;
    }
    std::erase_if(
        active_, [](const auto& entry) { return entry->done.load(std::memory_order_relaxed); });
    polling_ = std::any_of(
                   active_.begin(), active_.end(),
                   [](const auto& e) { return e->operation->NeedsPolling(); }) ||
               std::any_of(drivers_.begin(), drivers_.end(), [](const auto& driver) {
                 return driver->NeedsPolling();
               });
  }
  // Another thread of this rank may be asleep and wait for an operation that is done now.
  if (others_done) doorbell().Ring();
  return advanced;
}

bool Engine::ArmDrivers() {
  std::lock_guard lock(mutex_);
  return std::all_of(
      drivers_.begin(), drivers_.end(), [](const auto& driver) { return driver->Arm(); });
}

// The time of a wait is recorded only if the wait is longer than the fastest answers of peers. Fast
// answers must not pay for a look at the clock.
void Engine::Wait(Entry& entry) {
  WaitFor([&entry] { return entry.done.load(std::memory_order_acquire); }, &entry);
}

void Engine::WaitUntil(const std::function<bool()>& done) { WaitFor(done, nullptr); }

// `entry` is the awaited operation, or null.
template <typename Done>
void Engine::WaitFor(const Done& done, Entry* entry) {
  base::TimePoint since = {};  // unset: not timed yet
  std::optional<base::TimePoint> looked;
  for (int idle = 0; !done();) {
    if (AdvanceAll(entry)) {
      if (idle >= kUntimedTurns) RecordWaiting(since), since = {};
      idle = 0;
      continue;
    }
    if (++idle == kUntimedTurns) {
      const base::TimePoint now = clock_.Now();
      if (options_.recorder != nullptr) since = now;
      if (!looked) {
        BeginWait(entry, now);
        looked = now;
      }
    }
    if (options_.may_spin && idle < (slow_looks_ ? kSlowSpins : kSpins)) {
      RelaxCpu();
      continue;
    }
    if (!options_.may_spin && idle < kYields) {
      ::sched_yield();
      continue;
    }
    const base::Duration left = LookAtClock(&looked);
    const uint32_t ticket = doorbell().Prepare();
    if (AdvanceAll(entry) || done() || !ArmDrivers()) {
      doorbell().Cancel();
      continue;
    }
    doorbell().Sleep(ticket, std::min(left, polling_ ? kPollPause : kLongestSleep));
    RecordWaiting(since);  // now, so that readers see a wait that still lasts
    if (entry != nullptr && entry->arrival != nullptr) LookForArrival(*entry);
  }
  RecordWaiting(since);
}

// Adds the time since `since` to the record, and sets `since` to now.
void Engine::RecordWaiting(base::TimePoint& since) {
  if (since == base::TimePoint()) return;
  const base::TimePoint now = clock_.Now();
  options_.recorder->AddWaiting(now - std::exchange(since, now));
}

// --- lateness of ranks --------------------------------------------------------------------------

// Watches an operation only if a thread waits for it before all ranks have called it. Other
// operations cost nothing.
void Engine::WatchArrival(Entry& entry) {
  std::lock_guard lock(mutex_);
  if (entry.done.load(std::memory_order_relaxed) || entry.operation->moving()) return;
  entry.operation->TimeArrival(clock_);
  entry.arrival = std::make_unique<ArrivalWatch>(clock_.Now(), entry.operation->Missing());
}

void Engine::LookForArrival(Entry& entry) {
  std::lock_guard lock(mutex_);
  if (entry.done.load(std::memory_order_relaxed) || entry.operation->moving()) return;
  entry.arrival->Look(clock_.Now(), entry.operation->Missing());
}

// Returns the time at which all ranks had called the operation, if known. Small data travels with
// the calls, so a small operation is done when all ranks have called it.
base::TimePoint Engine::EndArrival(Entry& entry) {
  const base::TimePoint arrived =
      entry.operation == nullptr ? base::TimePoint() : entry.operation->arrived();
  if (entry.arrival != nullptr)
    entry.arrival->End(arrived == base::TimePoint() ? clock_.Now() : arrived);
  return arrived;
}

// --- deadlines ----------------------------------------------------------------------------------

// Returns the time for which no operation can be late. `looked` is the time at which a waiting
// thread began to wait or last called this.
base::Duration Engine::LookAtClock(std::optional<base::TimePoint>* looked) {
  std::lock_guard lock(mutex_);
  const base::TimePoint now = clock_.Now();
  if (looked != nullptr) Forgive(now - std::exchange(*looked, now).value_or(now), now);
  NoteAdvances(now);
  if (now >= next_alarm_) CheckDeadlines(now);
  LookForLeavers(now);
  base::TimePoint next = next_alarm_;
  for (const auto& driver : drivers_) next = std::min(next, driver->Look(now));
  return next - now;
}

// At every look, not only at alarms: an operation then waits from when it advanced last, on all
// ranks alike, and they give up together.
void Engine::NoteAdvances(base::TimePoint now) {
  for (const auto& entry : active_) {
    if (std::exchange(entry->advanced, false)) entry->since = now;
  }
}

void Engine::CheckDeadlines(base::TimePoint now) {
  next_alarm_ = base::TimePoint::max();
  bool failed = false;
  for (size_t i = 0; i < active_.size(); ++i) {
    Entry& entry = *active_[i];
    const auto done = [&entry] { return entry.done.load(std::memory_order_relaxed); };
    // Perhaps no thread has advanced the operation since. It is late only if it is stuck.
    if (!done()) AdvanceEntry(entry);
    if (entry.is_part) continue;
    if (!done() && std::exchange(entry.advanced, false)) entry.since = now;
    if (!done() && now - entry.since >= options_.timeout) GiveUp(active_[i], now);
    if (done()) {
      failed = true;
      continue;
    }
    if (!entry.warned && now - entry.since >= options_.stall_warning) Warn(i, now);
    next_alarm_ = std::min(next_alarm_, AlarmOf(entry, now));
  }
  if (failed) doorbell().Ring();
}

// Perhaps no thread looked between the start of an operation and the wait for it: the process may
// have been stopped.
void Engine::BeginWait(Entry* entry, base::TimePoint now) {
  std::lock_guard lock(mutex_);
  for (const auto& active : active_) {
    const bool awaited = entry == nullptr || active.get() == entry;
    if (awaited && !active->warned) active->since = std::max(active->since, now);
  }
}

// The time in which this process was stopped counts for no operation. Its peers were probably
// stopped with it, and go on when it does.
void Engine::Forgive(base::Duration slept, base::TimePoint now) {
  if (slept <= kLongestSleep + kLongestDelay) return;
  for (const auto& entry : active_) entry->since = std::min(entry->since + slept, now);
}

// The time of the next look: the deadline, or earlier to see whether the operation advances.
base::TimePoint Engine::AlarmOf(const Entry& entry, base::TimePoint now) const {
  const base::TimePoint next = entry.warned ? now : entry.since;
  return std::min(next + options_.stall_warning, entry.since + options_.timeout);
}

std::string Engine::Describe(const Entry& entry, base::TimePoint now) const {
  const std::string stall = DescribeStall(*entry.operation, options_.peer_records, now);
  return entry.purpose ? base::Text(stall, "; ", entry.purpose()) : stall;
}

void Engine::Warn(size_t index, base::TimePoint now) {
  Entry& entry = *active_[index];
  entry.warned = true;
  const bool said = std::any_of(
      active_.begin(), active_.begin() + static_cast<std::ptrdiff_t>(index), [&](const auto& e) {
        return !e->done.load(std::memory_order_relaxed) && e->warned &&
               SameQueue(*e->operation, *entry.operation);
      });
  if (said) return;
  log_(
      base::LogLevel::kWarning,
      base::Text("waiting for ", Seconds(now - entry.since), " s: ", Describe(entry, now)));
}

void Engine::GiveUp(const std::shared_ptr<Entry>& entry, base::TimePoint now) {
  const std::string error =
      base::Text("gave up after ", Seconds(now - entry->since), " s: ", Describe(*entry, now));
  Operation& operation = *entry->operation;
  const std::vector<int> missing = FindMissing(operation, options_.peer_records);
  const std::vector<int> awaited = missing.empty() ? operation.Awaited() : missing;
  operation.TimeIsUp(awaited);
  FailLost(entry, ErrorCode::kTimeout, error, awaited);
}

// `ranks`: of the operation.
void Engine::FailLost(
    const std::shared_ptr<Entry>& entry, ErrorCode code, const std::string& error,
    const std::vector<int>& ranks) {
  // If only the engine holds the entry, or if no thread ever asked for it, the error would be lost.
  const bool watched = entry->watched.load(std::memory_order_relaxed) && entry.use_count() > 1;
  if (!watched) log_(base::LogLevel::kError, error);
  const Error lost(
      code, error, entry->operation->members().InWorld(ranks), KindOf(*entry->operation));
  Lose(*entry, lost);
  Fail(*entry, std::make_exception_ptr(lost));
}

// Called before the operation fails, so that a thread that sees the error finds gave_up() true.
// Peers and MPI may still use the buffers of the communicator's operations. So the engine keeps
// these operations until it ends.
void Engine::Lose(Entry& entry, const Error& error) {
  const std::shared_ptr<const Members> members = entry.operation->shared_members();
  const bool first = !gave_up_.exchange(true);
  const Lost& lost = lost_.emplace_back(Lost{members, error.code(), error.what(), error.ranks()});
  Abandon(entry);
  for (const auto& other : active_) {
    if (other.get() == &entry || other->done.load(std::memory_order_relaxed)) continue;
    if (&other->operation->members() != members.get()) continue;
    Fail(*other, std::make_exception_ptr(LostError(lost, *other->operation)));
    Abandon(*other);
  }
  if (first && options_.recorder != nullptr) options_.recorder->GiveUp(error.what());
  if (first && options_.on_give_up) options_.on_give_up(error.what());
}

void Engine::LosePeers(const Error& error) {
  std::lock_guard lock(mutex_);
  if (lost_all_) return;
  lost_all_ = error;
  const bool first = !gave_up_.exchange(true);
  for (const auto& driver : drivers_) driver->LosePeers();
  for (const auto& entry : active_) {
    if (entry->done.load(std::memory_order_relaxed)) continue;
    Fail(*entry, LostAllError(*entry->operation));
    Abandon(*entry);
  }
  if (first && options_.recorder != nullptr) options_.recorder->GiveUp(error.what());
  doorbell().Ring();
}

std::optional<Error> Engine::WhyPeersAreLost() {
  std::lock_guard lock(mutex_);
  return lost_all_;
}

std::exception_ptr Engine::LostAllError(const Operation& operation) const {
  return std::make_exception_ptr(
      Error(lost_all_->code(), lost_all_->what(), lost_all_->ranks(), KindOf(operation)));
}

void Engine::Abandon(Entry& entry) {
  entry.operation->GiveUp();
  abandoned_.push_back(std::move(entry.operation));
}

const Engine::Lost* Engine::LostOf(const Operation& operation) const {
  for (const Lost& lost : lost_) {
    if (lost.members.get() == &operation.members()) return &lost;
  }
  return nullptr;
}

Error Engine::LostError(const Lost& lost, const Operation& operation) {
  return Error(
      lost.code,
      base::Text(
          NameOperation(operation.call(), operation.sequence(), operation.members()),
          ", cannot be done any more: ", lost.error),
      lost.ranks);
}

// --- ranks that leave ---------------------------------------------------------------------------

void Engine::WatchLeavers(Farewell farewell) {
  std::lock_guard lock(mutex_);
  farewell_ = std::move(farewell);
}

void Engine::Leave(Work last) {
  if (last.entry_ == nullptr) return;
  Entry& entry = *last.entry_;
  entry.watched.store(true, std::memory_order_relaxed);
  const base::TimePoint begin = clock_.Now();
  bool told = false;
  const auto done = [&] {
    if (entry.done.load(std::memory_order_acquire)) return true;
    if (!told && clock_.Now() - begin >= kFarewell) {
      std::lock_guard lock(mutex_);
      if (SaidAll()) {
        if (farewell_.leave) farewell_.leave();
        told = true;
      }
    }
    return false;
  };
  WaitFor(done, &entry);
  last.Wait();
}

// True if the peers can see everything that this rank has started.
bool Engine::SaidAll() const {
  for (const auto& entry : active_) {
    if (entry->done.load(std::memory_order_relaxed)) continue;
    const std::vector<int>& ranks = entry->operation->members().world_ranks;
    for (const int rank : entry->operation->Missing())
      if (ranks[static_cast<size_t>(rank)] == farewell_.self) return false;
  }
  return std::none_of(
      drivers_.begin(), drivers_.end(), [](const auto& driver) { return driver->HasNews(); });
}

bool Engine::Waits() const {
  const auto waits = [](const auto& entry) {
    return !entry->done.load(std::memory_order_relaxed) && !entry->operation->moving();
  };
  return std::any_of(active_.begin(), active_.end(), waits) ||
         std::any_of(drivers_.begin(), drivers_.end(), [](const auto& d) { return d->Waits(); });
}

// Looks only while something waits, because a look may move messages of MPI.
void Engine::LookForLeavers(base::TimePoint now) {
  if (!farewell_.leavers || !Waits()) return;
  leavers_ = farewell_.leavers();
  if (leavers_.empty()) return;
  bool failed = false;
  for (size_t i = 0; i < active_.size(); ++i) {
    Entry& entry = *active_[i];
    if (entry.done.load(std::memory_order_relaxed) || entry.is_part) continue;
    const std::vector<int> deserters = Deserters(entry);
    if (deserters.empty()) {
      entry.deserted = {};
    } else if (entry.deserted == base::TimePoint()) {
      entry.deserted = now;
    } else if (now - entry.deserted >= PatienceWith(entry.operation->members(), deserters)) {
      Desert(active_[i], deserters, now);
      failed = true;
    }
  }
  if (failed) doorbell().Ring();
}

// The ranks that will never call the operation. A rank that has left has already called the
// shutdown.
std::vector<int> Engine::Deserters(const Entry& entry) const {
  const Operation& operation = *entry.operation;
  if (operation.moving()) return {};
  if (static_cast<CollectiveKind>(operation.call().kind) == CollectiveKind::kShutdown) return {};
  std::vector<int> deserters;
  for (const int rank : FindMissing(operation, options_.peer_records)) {
    const int in_world = operation.members().world_ranks[static_cast<size_t>(rank)];
    if (std::find(leavers_.begin(), leavers_.end(), in_world) != leavers_.end())
      deserters.push_back(rank);
  }
  return deserters;
}

base::Duration Engine::PatienceWith(const Members& members, const std::vector<int>& leavers) const {
  if (members.SharesHost()) return kFarewell;
  const auto host_of = [&](int rank) { return members.hosts[static_cast<size_t>(rank)]; };
  const auto& ranks = members.world_ranks;
  const auto self = std::find(ranks.begin(), ranks.end(), farewell_.self);
  const bool here =
      self != ranks.end() && std::any_of(leavers.begin(), leavers.end(), [&](int rank) {
        return host_of(rank) == host_of(static_cast<int>(self - ranks.begin()));
      });
  return here ? kFarewell : kFarewellOfHosts;
}

void Engine::Desert(
    const std::shared_ptr<Entry>& entry, const std::vector<int>& deserters, base::TimePoint now) {
  FailLost(
      entry, ErrorCode::kPeerLost,
      base::Text(
          "gave up: ", Describe(*entry, now), "; ", entry->operation->members().List(deserters),
          deserters.size() == 1 ? " has" : " have", " called Shutdown"),
      deserters);
}

// --- the flight record --------------------------------------------------------------------------

void Engine::RecordStart(Entry& entry) {
  if (options_.recorder == nullptr || entry.is_part) return;
  const Operation& operation = *entry.operation;
  entry.ordinal = options_.recorder->Start(
      operation.members().name, operation.sequence(), operation.call(), entry.since);
  if (observer_ == nullptr) return;
  entry.observed = ++observed_;
  entry.operation->TimeArrival(clock_);
  observer_->Started(entry.observed, operation, entry.since);
}

void Engine::RecordMoving(Entry& entry) {
  if (options_.recorder == nullptr || entry.is_part) return;
  if (entry.recorded_moving || !entry.operation->moving()) return;
  entry.recorded_moving = true;
  options_.recorder->Move(entry.ordinal);
}

void Engine::RecordEnd(Entry& entry, base::FlightState state) {
  const base::TimePoint arrived = EndArrival(entry);
  if (options_.recorder == nullptr || entry.is_part) return;
  const base::TimePoint now = clock_.Now();
  options_.recorder->End(entry.ordinal, state, now);
  if (observer_ != nullptr && entry.observed != 0)
    observer_->Ended(entry.observed, arrived, now, state == base::FlightState::kFailed);
}

void Engine::SetObserver(std::shared_ptr<OperationObserver> observer) {
  std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

// --- the engine's thread ------------------------------------------------------------------------

void Engine::StartThread() {
  std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { RunThread(); });
}

void Engine::RunThread() {
  std::optional<base::TimePoint> looked;
  while (!stop_) {
    const base::Duration left = LookAtClock(&looked);
    const uint32_t ticket = doorbell().Prepare();
    if (AdvanceAll(nullptr) || !ArmDrivers()) {
      doorbell().Cancel();
      continue;
    }
    doorbell().Sleep(ticket, std::min(left, polling_ ? kPollPause : kLongestSleep));
  }
}

}  // namespace dtrun::ops
