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

/// A started collective, as its backend carries it out: a state machine that the Engine advances.
class Operation {
 public:
  /// The `sequence`-th operation of the communicator with these members, counted from 1. For a
  /// message: the `sequence`-th message to or from that peer.
  Operation(std::shared_ptr<const Members> members, uint64_t sequence, const Call& call)
      : members_(std::move(members)), sequence_(sequence), call_(call) {}

  enum class Progress {
    kNone,  ///< nothing to do until a peer acts
    kSome,  ///< advanced, and may be able to go on
    kDone,
  };

  virtual ~Operation() = default;
  /// Advances as far as possible without blocking. If it throws an Error, the operation has failed
  /// and is not advanced again.
  virtual Progress Advance() = 0;
  /// The ranks of the communicator that have not called the operation yet, as far as this rank
  /// knows.
  virtual std::vector<int> Missing() const = 0;
  /// If no rank is missing: the ranks whose data or answer this rank needs next, as far as it
  /// knows.
  virtual std::vector<int> Awaited() const { return {}; }
  /// True if no peer rings the doorbell for this operation (MPI). The engine then has to poll it.
  virtual bool NeedsPolling() const { return false; }
  /// Called when a peer is lost. The operation stays as it is until the engine ends, and its parts
  /// must not touch its buffers any more.
  virtual void GiveUp() {}
  /// Called before GiveUp if the operation has taken too long. `late`: the ranks for which it
  /// waits.
  virtual void TimeIsUp(const std::vector<int>& /*late*/) {}

  const Members& members() const { return *members_; }
  const std::shared_ptr<const Members>& shared_members() const { return members_; }
  uint64_t sequence() const { return sequence_; }
  const Call& call() const { return call_; }
  /// True if all ranks have called the operation.
  bool moving() const { return moving_; }
  /// From now on, SetMoving also notes the time, which costs a look at the clock.
  void TimeArrival(const base::Clock& clock) { arrival_clock_ = &clock; }
  /// The time at which all ranks had called the operation. Zero: they have not, or TimeArrival came
  /// too late.
  base::TimePoint arrived() const { return arrived_; }
  /// Names the operation and the ranks for which it waits. `missing` has the ranks that have not
  /// called it:
  ///   "collective #12, all_reduce (f32, 4 elements, sum), waits for rank 1 to call it"
  std::string DescribeWaitFor(const std::vector<int>& missing) const;

 protected:
  /// Notes that all ranks have called the operation: data moves from now on. Called by Advance.
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

  /// Lets operations progress without blocking. Returns true once this operation has finished.
  /// Throws its error.
  bool Test();
  /// Blocks, driving progress, until the operation has finished. Throws its error. kTimeout names
  /// the ranks that have not come.
  void Wait();
  /// The same. Adds to `lateness` the time of the wait for ranks that had not called the operation.
  void Wait(Lateness& lateness);

  /// For an Operation that is made of parts. Done returns true if this part has finished, without
  /// driving progress, and throws its error. Missing returns the part's missing ranks. Awaited
  /// returns, as ranks of the job, the missing ranks or else those that the part awaits. After
  /// Abandon, the part is not advanced any more, but its operation stays alive with this Work.
  bool Done() const;
  std::vector<int> Missing() const;
  std::vector<int> Awaited() const;
  void Abandon();

  /// Sets a text that is added to the stall reports of this operation. `purpose` is called under
  /// the engine's lock, while the operation is under way.
  void SetPurpose(std::function<std::string()> purpose);

 private:
  friend class Engine;
  struct Entry : std::enable_shared_from_this<Entry> {
    std::unique_ptr<Operation> operation;
    bool is_part = false;
    std::weak_ptr<Entry> whole;  // the operation of which this is a part
    base::TimePoint since;       // its start, or when it was last seen to advance
    uint64_t ordinal = 0;        // number in the flight record
    uint64_t observed = 0;       // number for the observer; 0: not observed
    bool recorded_moving = false;
    bool advanced = false;  // since the engine last looked at the clock
    bool warned = false;
    base::TimePoint deserted = {};  // since when a rank that has left is missing; unset: none is
    std::unique_ptr<ArrivalWatch> arrival = nullptr;  // of a wait that measures lateness
    std::function<std::string()> purpose = nullptr;   // may be null
    std::atomic<bool> watched{false};                 // a thread has waited for it or tested it
    std::atomic<bool> done{false};
    std::exception_ptr error;  // set before `done`
  };
  Work(Engine* engine, std::shared_ptr<Entry> entry) : engine_(engine), entry_(std::move(entry)) {}

  Engine* engine_ = nullptr;
  std::shared_ptr<Entry> entry_;
};

/// Starts operations when others end, and decides by itself which operations come next. The engine
/// advances it together with the operations, one call at a time, from any thread that does so.
class Driver {
 public:
  virtual ~Driver() = default;
  /// Advances as far as possible without blocking. Returns true if it has advanced. The operations
  /// that it starts are independent operations, not parts of another operation.
  virtual bool Advance() = 0;
  /// Called when the engine has looked at the clock. Returns the latest time of the next look.
  virtual base::TimePoint Look(base::TimePoint now) = 0;
  /// True if no peer rings the doorbell for the driver. The engine then has to poll it.
  virtual bool NeedsPolling() const { return false; }
  /// Called before a sleep: asks for a ring of the doorbell at the driver's next event. Returns
  /// false if there is such an event already.
  virtual bool Arm() { return true; }
  /// True if Advance takes a system call. A waiting thread then sleeps after fewer looks.
  virtual bool LooksSlowly() const { return false; }
  /// HasNews: this rank has something to tell its peers that they have not been told yet. Waits:
  /// the driver waits for its peers.
  virtual bool HasNews() const { return false; }
  virtual bool Waits() const { return false; }
  /// Called once if all peers are lost: see Engine::LosePeers.
  virtual void LosePeers() {}
};

struct EngineOptions {
  /// An operation that has not finished after `stall_warning` is reported once. After `timeout` it
  /// fails.
  base::Duration stall_warning = std::chrono::seconds(30);
  base::Duration timeout = std::chrono::seconds(600);
  /// True if every rank of this host has a core. Then a waiting thread spins before it sleeps.
  bool may_spin = true;
  /// Null: nothing is recorded. For measuring the cost of recording.
  std::shared_ptr<FlightRecorder> recorder = nullptr;
  /// Reads the last operations of other ranks, for the reports. May be null.
  PeerRecords peer_records = nullptr;
  /// Called once, with the error, when an operation has timed out or lost a peer. May be null. It
  /// must not call the engine.
  std::function<void(const std::string& error)> on_give_up = nullptr;
};

/// Advances all operations of a rank. A thread that waits for any operation advances all of them.
/// The engine's own thread, if it is started, does so too. Thread-safe.
///
/// Every started operation has a deadline, even if no thread waits for it. The engine checks the
/// deadlines whenever it makes progress. If a deadline has passed or a peer is lost, the
/// communicator is unusable: all its operations, also later ones, fail with the same code.
///
/// An operation may start others while it is advanced, and check them with Work::Done. These parts
/// are advanced like all other operations, but have no deadline and no flight record.
class Engine {
 public:
  Engine(EngineOptions options, const base::Clock& clock, base::LogSink log);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts the operation and advances it as far as possible.
  Work Start(std::unique_ptr<Operation> operation);
  /// Advances all operations and checks the deadlines.
  void Poll();
  /// Blocks, driving progress, until `done` returns true. For results of a Driver.
  void WaitUntil(const std::function<bool()>& done);
  /// Wakes the engine's own thread, if there is one.
  void Wake();

  /// The engine advances `driver` until it is removed.
  void AddDriver(std::shared_ptr<Driver> driver);
  void RemoveDriver(const Driver& driver);

  /// Ends all operations, also later ones, with this error: the job has lost ranks. Does nothing if
  /// it was called before.
  void LosePeers(const Error& error);
  /// That error; nullopt: LosePeers was not called.
  std::optional<Error> WhyPeersAreLost();

  /// How ranks tell each other that they start no more operations. The functions are called under
  /// the engine's lock.
  struct Farewell {
    int self = 0;                               ///< this rank in the world
    std::function<void()> leave;                ///< tells the other ranks
    std::function<std::vector<int>()> leavers;  ///< world ranks that have told so
  };
  /// From now on, an operation that a leaver has not called fails with kPeerLost. The error names
  /// the leaver.
  void WatchLeavers(Farewell farewell);
  /// Waits for `last`, the last operation that this rank starts. If the wait takes long, tells the
  /// other ranks that this rank leaves, so that they do not wait for it.
  void Leave(Work last);
  /// The world ranks that have left, as far as this rank knows. Called under the engine's lock.
  const std::vector<int>& leavers() const { return leavers_; }
  /// How long an operation of `members` still waits for its ranks `leavers`, which have left: their
  /// last calls may arrive after their farewell.
  base::Duration PatienceWith(const Members& members, const std::vector<int>& leavers) const;

  /// The segment that starts with this rank's Doorbell. Peers ring it when something has changed
  /// for this rank.
  const std::shared_ptr<Segment>& doorbell_segment() const { return doorbell_; }

  /// From now on, `observer` sees all operations that start. Null: no observer.
  void SetObserver(std::shared_ptr<OperationObserver> observer);

  const EngineOptions& options() const { return options_; }
  const base::Clock& clock() const { return clock_; }
  /// True if an operation has timed out or lost a peer: other ranks may never come again.
  bool gave_up() const { return gave_up_.load(std::memory_order_acquire); }

  /// Starts the engine's own thread.
  void StartThread();

 private:
  friend class Work;
  using Entry = Work::Entry;

  // A communicator that is unusable, and the reason.
  struct Lost {
    std::shared_ptr<const Members> members;
    ErrorCode code;
    std::string error;
    std::vector<int> ranks;  // that it is about, in the world
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
  void NoteAdvances(base::TimePoint now);
  void RecordWaiting(base::TimePoint& since);

  // Everything from here on is called under mutex_.
  bool AdvanceEntry(Entry& entry);
  bool AdvanceWhileItCan(Entry& entry);
  bool ArmDrivers();
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
  std::vector<int> Deserters(const Entry& entry) const;
  void Desert(
      const std::shared_ptr<Entry>& entry, const std::vector<int>& deserters, base::TimePoint now);
  void FailLost(
      const std::shared_ptr<Entry>& entry, ErrorCode code, const std::string& error,
      const std::vector<int>& ranks);
  void Lose(Entry& entry, const Error& error);
  void Abandon(Entry& entry);
  const Lost* LostOf(const Operation& operation) const;
  static Error LostError(const Lost& lost, const Operation& operation);
  std::exception_ptr LostAllError(const Operation& operation) const;

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
  base::TimePoint next_alarm_ = base::TimePoint::max();  // guarded: no operation can be late before
  uint32_t turns_ = 0;                                   // guarded
  Entry* advancing_ = nullptr;     // guarded: the entry whose Advance is running
  std::vector<Lost> lost_;         // guarded
  std::optional<Error> lost_all_;  // guarded: the error of all communicators
  Farewell farewell_;              // guarded
  std::vector<int> leavers_;       // guarded
  std::vector<std::unique_ptr<Operation>> abandoned_;  // guarded: of lost communicators
  std::atomic<bool> gave_up_{false};
  std::atomic<bool> polling_{false};     // some active operation needs polling
  std::atomic<bool> slow_looks_{false};  // some driver looks slowly
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// The ranks that have not called the operation, as far as the operation or `records` can tell.
/// `records` may be null.
std::vector<int> FindMissing(const Operation& operation, const PeerRecords& records);

/// Names the operation, the ranks for which it waits, and the last operation of each of these
/// ranks. `records` may be null:
///   "collective #12, all_reduce (f32, 4 elements, sum), waits for ranks 1 and 3 to call it; rank 1
///   last finished collective #11, barrier, 31 s ago; rank 3 is in collective #9, broadcast (f32, 7
///   elements, root 0), since 45 s"
std::string DescribeStall(
    const Operation& operation, const PeerRecords& records, base::TimePoint now);

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_ENGINE_PROGRESS_ENGINE_H_
