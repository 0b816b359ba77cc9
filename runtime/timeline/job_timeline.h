#ifndef DTRUN_RUNTIME_TIMELINE_JOB_TIMELINE_H_
#define DTRUN_RUNTIME_TIMELINE_JOB_TIMELINE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/flight_record.h"
#include "base/process.h"
#include "base/trace.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/flight_recorder.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::runtime {

/// The memory in which a rank writes its trace (base/trace.h). Other processes may read it at any
/// time. While the buffer is off, a record costs one load. Any thread may write. Writing takes no
/// lock, and no system call after the thread's first record.
class TraceBuffer {
 public:
  struct Owner {
    int rank, size;
    std::string host;
    uint32_t epoch = 0;  // of the job
  };

  /// Creates a buffer in a new file, which stays however this process ends. The destructor removes
  /// the unused end of the file. If there is little room on the disk, the buffer is smaller. Throws
  /// Error kSystem.
  static std::shared_ptr<TraceBuffer> InFile(const std::string& path, const Owner& owner);
  /// Creates a buffer in memory of this process alone. Throws Error kSystem.
  static std::shared_ptr<TraceBuffer> InMemory(const Owner& owner);
  ~TraceBuffer();
  TraceBuffer(const TraceBuffer&) = delete;
  TraceBuffer& operator=(const TraceBuffer&) = delete;

  /// From here on, records are written, behind the existing ones.
  void TurnOn();
  void TurnOff() { on_.store(false, std::memory_order_relaxed); }
  bool on() const { return on_.load(std::memory_order_relaxed); }
  /// Removes all records. For a buffer in memory that is off. A thread in the middle of a record
  /// may still write it.
  void Clear();

  /// The current trace.
  const void* data() const { return header_; }
  size_t used_bytes() const { return base::UsedTraceBytes(header_, bytes_); }

  /// Add a record of the calling thread: AddMark of one slot, Add of several. No effect while the
  /// buffer is off.
  void AddMark(uint32_t reducer, uint32_t gradient, base::TimePoint now);
  void Add(base::TraceType type, uint32_t id, std::initializer_list<uint64_t> words);
  /// Adds `words`, then the text, which is cut at 4,000 bytes.
  void AddText(
      base::TraceType type, uint32_t id, std::initializer_list<uint64_t> words,
      const std::string& text);

 private:
  static constexpr uint32_t kMostThreads = 255;  // further threads share a number

  TraceBuffer(void* data, size_t bytes, std::string path, const Owner& owner);
  base::TraceSlot* Reserve(uint64_t slots);
  uint8_t ThreadNumber();
  void Store(
      base::TraceType type, uint32_t id, uint8_t thread, const uint64_t* words, size_t count);

  base::TraceHeader* header_;
  base::TraceSlot* slots_;
  size_t bytes_;
  std::string path_;  // "": in memory
  std::atomic<bool> on_{false};
  std::atomic<uint32_t> threads_{0};
  std::atomic<uint64_t> thread_ids_[kMostThreads] = {};  // by number
};

inline uint64_t TraceTime(base::TimePoint time) {
  return static_cast<uint64_t>(time.time_since_epoch().count());
}

/// Measures the time of steps and its parts: see <dtrun/detail/statistics.h>. Not thread-safe.
class StepMeter {
 public:
  explicit StepMeter(const base::Clock& clock) : clock_(&clock), began_(clock.Now()) {}

  /// While a scope lives, time counts as the reducer's own. If scopes are nested, the outer one
  /// counts.
  class [[nodiscard]] Scope {
   public:
    explicit Scope(StepMeter& meter) {
      if (std::exchange(meter.inside_, true)) return;
      meter_ = &meter;
      entered_ = meter.clock_->Now();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (meter_ == nullptr) return;
      meter_->left_ = meter_->clock_->Now();
      meter_->exposed_ += meter_->left_ - entered_;
      meter_->inside_ = false;
    }

   private:
    StepMeter* meter_ = nullptr;  // null: nested in another scope
    base::TimePoint entered_ = {};
  };

  void AddBucket(uint64_t bytes) {
    ++running_.buckets;
    running_.bytes += bytes;
  }
  /// Waits add their lateness here.
  ops::Lateness& lateness() { return lateness_; }
  /// Ends the step. The scope of the step's wait has just ended.
  void EndStep() {
    running_.steps = 1;
    running_.total_ns = (left_ - began_).count();
    running_.exposed_ns = exposed_.count();
    running_.late_ns = (lateness_.total - counted_late_).count();
    total_ += running_;
    last_ = std::exchange(running_, {});
    began_ = left_;
    exposed_ = {};
    counted_late_ = lateness_.total;
  }

  const base::StepTotals& last() const { return last_; }
  const base::StepTotals& total() const { return total_; }
  /// The lateness of all steps.
  const ops::Lateness& total_lateness() const { return lateness_; }

 private:
  const base::Clock* clock_;
  base::TimePoint began_, left_ = {};
  base::Duration exposed_ = {};
  ops::Lateness lateness_;            // of all steps
  base::Duration counted_late_ = {};  // the part of steps that have ended
  bool inside_ = false;
  base::StepTotals running_, last_, total_;
};

/// Receives the events of a GradientReducer, on the thread that uses the reducer. Its functions
/// must be quick.
class ReducerObserver {
 public:
  virtual ~ReducerObserver() = default;
  virtual void Marked(size_t gradient) = 0;
  /// The next operation that this thread starts reduces the bucket.
  virtual void BucketStarts(size_t bucket) = 0;
  virtual void WaitBegins() = 0;
  virtual void WaitEnds() = 0;
};

/// Receives the events of the named tensors of a process set, one call at a time. Its functions
/// must be quick.
class TensorObserver {
 public:
  virtual ~TensorObserver() = default;
  virtual void Submitted(std::string_view name) = 0;
  /// All ranks have submitted it.
  virtual void Agreed(std::string_view name) = 0;
  virtual void Ended(std::string_view name, bool failed) = 0;
};

/// The timeline of a rank. The launcher turns it on for the whole job, or the program turns it on
/// and off. See <dtrun/context.h>. One thread at a time calls Start and Stop; other threads may go
/// on with their operations.
class Timeline {
 public:
  /// `owner.rank` is the launcher's number for this rank.
  Timeline(TraceBuffer::Owner owner, ops::Engine& engine);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Turns the timeline on until the process ends. The launcher reads it from the file `path`.
  /// Throws Error kSystem.
  void StartInFile(const std::string& path);

  /// Collective over `world`, where rank r runs on host `host_of_rank[r]`. Rank 0 opens `path`. If
  /// rank 0 cannot open it, or a rank has no memory, all ranks throw Error kSystem. Throws
  /// kInvalidArgument if a timeline is running already.
  void Start(
      ops::Communicator& world, const std::vector<int>& host_of_rank, const std::string& path);
  /// Collective: rank 0 writes the timeline of all ranks. If it cannot, all ranks throw Error
  /// kSystem. Throws kInvalidArgument if no timeline from Start is running.
  void Stop();
  /// True if a timeline from Start is running.
  bool stoppable() const { return session_ != nullptr; }

  /// Returns an observer for a reducer of these gradients. The timeline outlives the reducer.
  std::unique_ptr<ReducerObserver> ObserveReducer(std::vector<std::string> gradients);
  /// Returns an observer for a process set. `set` stands behind the names of its tensors; "": does
  /// not. The observer may outlive the timeline.
  std::unique_ptr<TensorObserver> ObserveTensors(std::string set);

 private:
  class Tracer;
  struct Session;

  std::vector<std::string> GatherTraces();
  std::string WriteTimeline(Session& session, const std::vector<std::string>& traces);

  TraceBuffer::Owner owner_;
  ops::Engine& engine_;
  std::shared_ptr<Tracer> tracer_;
  std::shared_ptr<TraceBuffer> memory_;  // for Start
  std::unique_ptr<ops::Communicator> communicator_;
  std::unique_ptr<Session> session_;
  bool in_file_ = false;
};

}  // namespace dtrun::runtime

#endif
