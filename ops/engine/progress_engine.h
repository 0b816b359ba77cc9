#ifndef DTRUN_OPS_ENGINE_PROGRESS_ENGINE_H_
#define DTRUN_OPS_ENGINE_PROGRESS_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "dtrun/error.h"
#include "ops/bootstrap/segment.h"
#include "ops/collective/collective.h"
#include "ops/engine/flight_recorder.h"

namespace dtrun::ops {

/// What a backend makes of a started collective: a state machine that the Engine advances.
class Operation {
 public:
  /// The `sequence`-th operation of the communicator with these members, counted from 1 (of a
  /// message: the `sequence`-th to or from that peer).
  Operation(std::shared_ptr<const Members> members, uint64_t sequence, const Call& call)
      : members_(std::move(members)), sequence_(sequence), call_(call) {}

  enum class Progress {
    kNone,  ///< nothing to do until a peer acts
    kSome,  ///< advanced, and may be able to go on
    kDone,
  };

  virtual ~Operation() = default;
  /// Advances as far as it can without blocking. Throws Error: the operation has failed and is not
  /// advanced again.
  virtual Progress Advance() = 0;
  /// The ranks of the communicator that have not called it yet, as far as this rank can see.
  virtual std::vector<int> Missing() const = 0;
  /// No peer rings the doorbell for it (MPI): it has to be looked at again and again.
  virtual bool NeedsPolling() const { return false; }
  /// It has failed for lack of a peer, and stays as it is until the engine ends. Its parts must not
  /// touch its buffers any more.
  virtual void GiveUp() {}

  const Members& members() const { return *members_; }
  const std::shared_ptr<const Members>& shared_members() const { return members_; }
  uint64_t sequence() const { return sequence_; }
  const Call& call() const { return call_; }
  /// All ranks have called it.
  bool moving() const { return moving_; }
  /// From here on it notes when that happens: costs a look at the clock.
  void TimeArrival(const base::Clock& clock) { arrival_clock_ = &clock; }
  /// When all ranks had called it; zero: they have not, or nobody asked in time.
  base::TimePoint arrived() const { return arrived_; }
  /// What it is, and whom it waits for where `missing` has not called it:
  /// "collective #12, all_reduce (f32, 4 elements, sum), waits for rank 1 to call it".
  std::string DescribeWaitFor(const std::vector<int>& missing) const;

 protected:
  /// All ranks have called it, from here on data moves. Called by Advance.
  void SetMoving() {
    moving_ = true;
    if (arrival_clock_ != nullptr) arrived_ = arrival_clock_->Now();
  }

 private:
  std::shared_ptr<const Members> members_;
  uint64_t sequence_;
  Call call_;
  bool moving_ = false;
  const base::Clock* arrival_clock_ = nullptr;
  base::TimePoint arrived_ = {};
};

class Engine;

/// One started operation. Not thread-safe. A default-constructed Work has finished.
class Work {
 public:
  Work() = default;

  /// Lets operations progress without blocking; true once this one has finished. Throws its error.
  bool Test();
  /// Blocks, driving progress, until it has finished. Throws its error; kTimeout, which names who
  /// has not come.
  void Wait();
  /// The same; adds to `lateness` for how long it had to wait for ranks that had not called it.
  void Wait(Lateness& lateness);

  /// For an Operation that is made of others: whether this part has finished, without progress;
  /// throws its error. Its Missing(). And: the part is advanced no further, but what it is made of
  /// stays alive with this Work.
  bool Done() const;
  std::vector<int> Missing() const;
  void Abandon();

  /// What is added to the reports of a stall of this operation, in words; called under the engine's
  /// lock, while the operation is under way.
  void SetPurpose(std::function<std::string()> purpose);

 private:
  friend class Engine;
  struct Entry : std::enable_shared_from_this<Entry> {
    std::unique_ptr<Operation> operation;
    bool is_part = false;
    std::weak_ptr<Entry> whole;  // of which it is a part
    base::TimePoint since;       // its start, or when it was last seen to advance
    uint64_t ordinal = 0;        // in the flight record
    uint64_t observed = 0;       // its number for the observer; 0: not seen
    bool recorded_moving = false;
    bool advanced = false;  // since the engine last looked at the clock
    bool warned = false;
    base::TimePoint deserted = {};  // since when a rank that has left is missing; unset: none is
    std::unique_ptr<ArrivalWatch> arrival = nullptr;  // of a wait that wants to know
    std::function<std::string()> purpose = nullptr;   // may be null
    std::atomic<bool> watched{false};                 // somebody has waited for it or asked for it
    std::atomic<bool> done{false};
    std::exception_ptr error;  // set before `done`
  };
  Work(Engine* engine, std::shared_ptr<Entry> entry) : engine_(engine), entry_(std::move(entry)) {}

  Engine* engine_ = nullptr;
  std::shared_ptr<Entry> entry_;
};

/// Starts operations as others end: what decides by itself what comes next. The engine drives it
/// wherever it advances operations, one call at a time, from whichever thread does that.
class Driver {
 public:
  virtual ~Driver() = default;
  /// Goes on as far as it can without blocking; true when it has. What it starts are operations
  /// like any others, not parts of one.
  virtual bool Advance() = 0;
  /// The engine has looked at the clock. Returns when it has to look again at the latest.
  virtual base::TimePoint Look(base::TimePoint now) = 0;
  /// No peer rings the doorbell for what it waits for: it has to be advanced again and again.
  virtual bool NeedsPolling() const { return false; }
  /// This rank has something to tell its peers that they have not been told; it waits for them.
  virtual bool HasNews() const { return false; }
  virtual bool Waits() const { return false; }
};

struct EngineOptions {
  /// An operation that has not finished after this time is reported once, and fails after that.
  base::Duration stall_warning = std::chrono::seconds(30);
  base::Duration timeout = std::chrono::seconds(600);
  /// A core is free for every rank of this host, so a waiting thread may spin before it sleeps.
  bool may_spin = true;
  /// Null: nothing is recorded, for measuring what that costs.
  std::shared_ptr<FlightRecorder> recorder = nullptr;
  /// What other ranks did last, for the reports; may be null.
  PeerRecords peer_records = nullptr;
  /// Called once, with the error, when an operation has timed out or lost a peer; may be null. It
  /// must not call the engine.
  std::function<void(const std::string& error)> on_give_up = nullptr;
};

/// The one place of a rank where operations progress. A thread that waits drives all of them; a
/// thread of the engine's own does so besides where that is worth it. Thread-safe.
///
/// Every started operation has a deadline, whether anybody waits for it or not; it is looked at
/// wherever the engine progresses. When one has passed, or a peer is lost, the communicator has
/// come to its end: all its operations, also later ones, fail with the same code.
///
/// An operation may start others while it is advanced, and look at them with Work::Done. These are
/// parts of it: they are advanced like all others, but have no deadline or flight record of their
/// own.
class Engine {
 public:
  Engine(EngineOptions options, const base::Clock& clock, base::LogSink log);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts the operation and advances it as far as it goes.
  Work Start(std::unique_ptr<Operation> operation);
  /// Advances everything that has been started, and looks at the deadlines.
  void Poll();
  /// Blocks, driving progress, until `done` says so: of what a Driver brings about.
  void WaitUntil(const std::function<bool()>& done);
  /// The engine's own thread, if there is one, looks what there is to do.
  void Wake();

  /// From here on `driver` is driven; until it is removed.
  void AddDriver(std::shared_ptr<Driver> driver);
  void RemoveDriver(const Driver& driver);

  /// How ranks tell each other that they start nothing more. All are called under the engine's
  /// lock.
  struct Farewell {
    int self = 0;                               ///< this rank in the world
    std::function<void()> leave;                ///< tells the others
    std::function<std::vector<int>()> leavers;  ///< ranks of the world that have told so
  };
  /// From here on an operation that a leaver has not called fails with kPeerLost, which names it.
  void WatchLeavers(Farewell farewell);
  /// Waits for `last`, the last operation that this rank starts. If that lasts, it tells the others
  /// that this rank leaves, so that nobody waits for it.
  void Leave(Work last);
  /// Ranks of the world that have told so, as far as is known; under the engine's lock.
  const std::vector<int>& leavers() const { return leavers_; }

  /// What peers ring when something has changed for this rank: a Doorbell at the start of the
  /// segment.
  const std::shared_ptr<Segment>& doorbell_segment() const { return doorbell_; }

  /// From here on `observer` sees all operations that are started; null: nobody does.
  void SetObserver(std::shared_ptr<OperationObserver> observer);

  void set_may_spin(bool may_spin) { options_.may_spin = may_spin; }
  const EngineOptions& options() const { return options_; }
  const base::Clock& clock() const { return clock_; }
  /// An operation has timed out or lost a peer: other ranks may never come again.
  bool gave_up() const { return gave_up_.load(std::memory_order_acquire); }

  /// Starts the engine's own thread.
  void StartThread();

 private:
  friend class Work;
  using Entry = Work::Entry;

  // A communicator that has come to its end, and why.
  struct Lost {
    std::shared_ptr<const Members> members;
    ErrorCode code;
    std::string error;
  };

  void Wait(Entry& entry);
  template <typename Done>
  void WaitFor(const Done& done, Entry* entry);
  void WatchArrival(Entry& entry);
  void LookForArrival(Entry& entry);
  bool AdvanceAll(const Entry* awaited);
  void RunThread();
  Doorbell& doorbell() { return *reinterpret_cast<Doorbell*>(doorbell_->data()); }

  void BeginWait(Entry* entry, base::TimePoint now);
  base::Duration LookAtClock(std::optional<base::TimePoint>* looked);
  void RecordWaiting(base::TimePoint& since);

  // Everything from here on is called under mutex_.
  bool AdvanceEntry(Entry& entry);
  bool AdvanceWhileItCan(Entry& entry);
  void Fail(Entry& entry, std::exception_ptr error);
  base::TimePoint EndArrival(Entry& entry);

  void CheckDeadlines(base::TimePoint now);
  void Forgive(base::Duration slept, base::TimePoint now);
  base::TimePoint AlarmOf(const Entry& entry, base::TimePoint now) const;
  std::string Describe(const Entry& entry, base::TimePoint now) const;
  void Warn(size_t index, base::TimePoint now);
  void GiveUp(const std::shared_ptr<Entry>& entry, base::TimePoint now);
  bool SaidAll() const;
  bool Waits() const;
  void LookForLeavers(base::TimePoint now);
  base::Duration PatienceWith(const Entry& entry, const std::vector<int>& deserters) const;
  std::vector<int> Deserters(const Entry& entry) const;
  void Desert(
      const std::shared_ptr<Entry>& entry, const std::vector<int>& deserters, base::TimePoint now);
  void FailLost(const std::shared_ptr<Entry>& entry, ErrorCode code, const std::string& error);
  void Lose(Entry& entry, ErrorCode code, const std::string& error);
  void Abandon(Entry& entry);
  const Lost* LostOf(const Operation& operation) const;
  static Error LostError(const Lost& lost, const Operation& operation);

  void RecordStart(Entry& entry);
  void RecordMoving(Entry& entry);
  void RecordEnd(Entry& entry, base::FlightState state);

  EngineOptions options_;
  const base::Clock& clock_;
  base::LogSink log_;
  std::shared_ptr<OperationObserver> observer_;  // guarded by mutex_
  uint64_t observed_ = 0;                        // guarded
  std::shared_ptr<Segment> doorbell_;
  std::recursive_mutex mutex_;                    // an operation that is advanced may start others
  std::vector<std::shared_ptr<Driver>> drivers_;  // guarded by mutex_
  std::vector<std::shared_ptr<Entry>> active_;    // guarded by mutex_, in the order of their start
  base::TimePoint next_alarm_ = base::TimePoint::max();  // guarded: nothing can be late before
  uint32_t turns_ = 0;                                   // guarded
  Entry* advancing_ = nullptr;                           // guarded: in whose Advance we are
  std::vector<Lost> lost_;                               // guarded
  Farewell farewell_;                                    // guarded
  std::vector<int> leavers_;                             // guarded
  std::vector<std::unique_ptr<Operation>> abandoned_;    // guarded: of lost communicators
  std::atomic<bool> gave_up_{false};
  std::atomic<bool> polling_{false};  // some active operation needs polling
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// What an operation is, whom it waits for, and what each of these did last, as far as `records`
/// (which may be null) tells:
///   "collective #12, all_reduce (f32, 4 elements, sum), waits for ranks 1 and 3 to call it; rank 1
///   last finished collective #11, barrier, 31 s ago; rank 3 is in collective #9, broadcast (f32, 7
///   elements, root 0), since 45 s"
/// The ranks of its communicator that have not called it, as far as it or the records can tell.
std::vector<int> FindMissing(const Operation& operation, const PeerRecords& records);

std::string DescribeStall(
    const Operation& operation, const PeerRecords& records, base::TimePoint now);

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_ENGINE_PROGRESS_ENGINE_H_
