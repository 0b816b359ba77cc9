#ifndef DTRUN_OPS_FLIGHT_RECORDER_H_
#define DTRUN_OPS_FLIGHT_RECORDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/call.h"
#include "base/clock.h"
#include "base/flight_record.h"

namespace dtrun::ops {

/// Writes down the last operations of a rank, in memory that other processes may read at any
/// moment: see base/flight_record.h. No call takes a lock, enters the kernel or formats anything.
/// One thread at a time.
class FlightRecorder {
 public:
  /// In a new file, which is there however this process ends. Throws Error kSystem.
  static std::shared_ptr<FlightRecorder> InFile(
      const std::string& path, int rank, const std::string& host);
  /// In memory of this process alone. Throws Error kSystem.
  static std::shared_ptr<FlightRecorder> InMemory(int rank, const std::string& host);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// Returns the operation's number among all of this rank.
  uint64_t Start(
      const std::string& communicator, uint64_t sequence, const base::Call& call,
      base::TimePoint now);
  /// All ranks have called operation `ordinal`.
  void Move(uint64_t ordinal);
  /// It is done, or has failed.
  void End(uint64_t ordinal, base::FlightState state, base::TimePoint now);
  /// The error with which this rank gave up waiting. The first one stays.
  void GiveUp(const std::string& error);

  /// How far the rank has come: see base::FlightProgress. Any thread, each a store or two.
  void AddSteps(const base::StepTotals& steps);
  void ReportProgress(uint64_t step, uint64_t examples);
  void AddWaiting(base::Duration duration);

  /// Any thread.
  base::FlightRecord Read() const;
  base::Duration waited() const;

 private:
  explicit FlightRecorder(void* data);
  static std::shared_ptr<FlightRecorder> Begin(void* data, int rank, const std::string& host);

  base::FlightEntry& EntryOf(uint64_t ordinal) {
    return entries_[(ordinal - 1) % base::kFlightEntries];
  }
  // A ring of operations may have passed since it started: its place is another's then.
  static bool Holds(const base::FlightEntry& entry, uint64_t ordinal) {
    return entry.mark.load(std::memory_order_relaxed) >> 3 == ordinal;
  }

  base::FlightHeader* header_;
  base::FlightEntry* entries_;
  uint64_t started_ = 0;
};

/// The record of a rank of the job, given its rank in the world; nothing when it cannot be read
/// from here.
using PeerRecords = std::function<std::optional<base::FlightRecord>(int world_rank)>;

}  // namespace dtrun::ops

#endif
