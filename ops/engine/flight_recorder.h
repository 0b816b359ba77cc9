#ifndef DTRUN_OPS_ENGINE_FLIGHT_RECORDER_H_
#define DTRUN_OPS_ENGINE_FLIGHT_RECORDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/call.h"
#include "base/flight_record.h"
#include "base/process.h"

namespace dtrun::ops {

/// Records the last operations of a rank in memory that other processes may read at any moment: see
/// base/flight_record.h. No call takes a lock, enters the kernel or formats text. One thread at a
/// time.
class FlightRecorder {
 public:
  /// Records into a new file, which remains however this process ends. Throws Error kSystem.
  static std::shared_ptr<FlightRecorder> InFile(
      const std::string& path, int rank, const std::string& host);
  /// Records into memory of this process alone. Throws Error kSystem.
  static std::shared_ptr<FlightRecorder> InMemory(int rank, const std::string& host);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// Returns the operation's number among all operations of this rank.
  uint64_t Start(
      const std::string& communicator, uint64_t sequence, const base::Call& call,
      base::TimePoint now);
  /// Records that all ranks have called operation `ordinal`.
  void Move(uint64_t ordinal);
  /// Records that the operation is done or has failed.
  void End(uint64_t ordinal, base::FlightState state, base::TimePoint now);
  /// Records the error with which this rank gave up waiting. Only the first error is kept.
  void GiveUp(const std::string& error);

  /// The progress of the rank: see base::FlightProgress. Any thread. Each call costs a few atomic
  /// operations.
  void AddSteps(const base::StepTotals& steps);
  void ReportProgress(uint64_t step, uint64_t examples);
  void AddWaiting(base::Duration duration);
  /// The step of the progress so far: see base::FlightProgress.
  uint64_t step() const;

  /// Any thread.
  base::FlightRecord Read() const;
  base::Duration waited() const;

 private:
  explicit FlightRecorder(void* data);
  static std::shared_ptr<FlightRecorder> Begin(void* data, int rank, const std::string& host);

  base::FlightEntry& EntryOf(uint64_t ordinal) {
    return entries_[(ordinal - 1) % base::kFlightEntries];
  }
  // False if the ring has wrapped since operation `ordinal` started: another operation has its
  // entry.
  static bool Holds(const base::FlightEntry& entry, uint64_t ordinal) {
    return entry.mark.load(std::memory_order_relaxed) >> 3 == ordinal;
  }

  base::FlightHeader* header_;
  base::FlightEntry* entries_;
  uint64_t started_ = 0;
};

/// Returns the record of a rank, given its rank in the world. nullopt if this process cannot read
/// it.
using PeerRecords = std::function<std::optional<base::FlightRecord>(int world_rank)>;

class Operation;

/// Sees every operation of a rank begin and end, except parts of other operations. The Engine calls
/// it, one call at a time, from the thread that advances the operation. It must be quick and must
/// not call the engine.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  /// `number` counts the starts: 1, 2 and so on.
  virtual void Started(uint64_t number, const Operation& operation, base::TimePoint now) = 0;
  /// `arrived` is the time at which all ranks had called the operation. Zero: not known.
  virtual void Ended(
      uint64_t number, base::TimePoint arrived, base::TimePoint now, bool failed) = 0;
};

/// Time that waits spent before all ranks had called the awaited operation.
struct Lateness {
  base::Duration total = {};
  /// By rank of the communicator: the part of `total` in which that rank was known to be missing.
  /// Several ranks may be missing at the same time.
  std::vector<base::Duration> by_rank = {};
};

/// One wait for the ranks that have not called an operation yet. Pure.
class ArrivalWatch {
 public:
  /// `missing` has the ranks that have not called the operation, as far as this rank knows.
  ArrivalWatch(base::TimePoint now, std::vector<int> missing)
      : begin_(now), looked_(now), missing_(std::move(missing)) {}

  /// Updates the missing ranks.
  void Look(base::TimePoint now, std::vector<int> missing) {
    Charge(now);
    missing_ = std::move(missing);
  }

  /// Ends the wait: all ranks had come at `arrived`, or the operation ended without them.
  void End(base::TimePoint arrived) {
    Charge(arrived);
    missing_.clear();
    lateness_.total = arrived > begin_ ? arrived - begin_ : base::Duration(0);
  }

  void AddTo(Lateness& sum) const {
    sum.total += lateness_.total;
    if (sum.by_rank.size() < lateness_.by_rank.size()) sum.by_rank.resize(lateness_.by_rank.size());
    for (size_t rank = 0; rank < lateness_.by_rank.size(); ++rank)
      sum.by_rank[rank] += lateness_.by_rank[rank];
  }

 private:
  void Charge(base::TimePoint now) {
    if (now <= looked_) return;
    for (const int rank : missing_) {
      const auto index = static_cast<size_t>(rank);
      if (lateness_.by_rank.size() <= index) lateness_.by_rank.resize(index + 1);
      lateness_.by_rank[index] += now - looked_;
    }
    looked_ = now;
  }

  base::TimePoint begin_, looked_;
  std::vector<int> missing_;
  Lateness lateness_;
};

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_ENGINE_FLIGHT_RECORDER_H_
