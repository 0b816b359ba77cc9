#ifndef DTRUN_OPS_ENGINE_H_
#define DTRUN_OPS_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "ops/collective.h"
#include "ops/doorbell.h"
#include "ops/segment.h"

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
  /// This rank waits no longer. What the operation has started must not touch its buffers any more.
  virtual void GiveUp() {}

  const Members& members() const { return *members_; }
  uint64_t sequence() const { return sequence_; }
  const Call& call() const { return call_; }
  /// What it is and whom it waits for:
  /// "collective #12, all_reduce (f32, 4 elements, sum), waits for rank 1 to call it".
  std::string Describe() const;

 private:
  std::shared_ptr<const Members> members_;
  uint64_t sequence_;
  Call call_;
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

  /// For an Operation that is made of others: whether this part has finished, without progress;
  /// throws its error. Its Missing(). And: the part is advanced no further, but what it is made of
  /// stays alive with this Work.
  bool Done() const;
  std::vector<int> Missing() const;
  void Abandon();

 private:
  friend class Engine;
  struct Entry {
    std::unique_ptr<Operation> operation;
    std::atomic<bool> done{false};
    std::exception_ptr error;  // set before `done`
  };
  Work(Engine* engine, std::shared_ptr<Entry> entry) : engine_(engine), entry_(std::move(entry)) {}

  Engine* engine_ = nullptr;
  std::shared_ptr<Entry> entry_;
};

struct EngineOptions {
  base::Duration stall_warning = std::chrono::seconds(30);
  base::Duration timeout = std::chrono::seconds(600);
  /// A core is free for every rank of this host, so a waiting thread may spin before it sleeps.
  bool may_spin = true;
};

/// The one place of a rank where operations progress. A thread that waits drives all of them; a
/// thread of the engine's own does so besides where that is worth it. Thread-safe. An Operation may
/// start others while it is advanced, and look at them with Work::Done.
class Engine {
 public:
  Engine(EngineOptions options, const base::Clock& clock, base::LogSink log);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts the operation and advances it as far as it goes.
  Work Start(std::unique_ptr<Operation> operation);
  /// Advances everything that has been started.
  void Poll();

  /// What peers ring when something has changed for this rank: a Doorbell at the start of the
  /// segment.
  const std::shared_ptr<Segment>& doorbell_segment() const { return doorbell_; }

  void set_may_spin(bool may_spin) { options_.may_spin = may_spin; }
  const EngineOptions& options() const { return options_; }
  const base::Clock& clock() const { return clock_; }

  /// Starts the engine's own thread.
  void StartThread();

 private:
  friend class Work;
  using Entry = Work::Entry;

  void Wait(Entry& entry);
  bool AdvanceAll(const Entry* awaited);
  static bool AdvanceEntry(Entry& entry);
  static void Fail(Entry& entry, std::exception_ptr error);
  base::Duration CheckStall(Entry& entry, base::TimePoint start, bool& warned);
  void RunThread();
  Doorbell& doorbell() { return *reinterpret_cast<Doorbell*>(doorbell_->data()); }

  EngineOptions options_;
  const base::Clock& clock_;
  base::LogSink log_;
  std::shared_ptr<Segment> doorbell_;
  std::recursive_mutex mutex_;  // an operation that is advanced may start others
  std::vector<std::shared_ptr<Entry>> active_;  // guarded by mutex_, in the order of their start
  std::atomic<bool> polling_{false};            // some active operation needs polling
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dtrun::ops

#endif
