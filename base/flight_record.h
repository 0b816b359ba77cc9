#ifndef DTRUN_BASE_FLIGHT_RECORD_H_
#define DTRUN_BASE_FLIGHT_RECORD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/call.h"
#include "base/process.h"

namespace dtrun::base {

/// How far an operation has come.
enum class FlightState : uint8_t {
  kNone,     ///< nothing is recorded here, or it is being written
  kStarted,  ///< this rank has called it
  kMoving,   ///< all ranks have called it, data moves
  kDone,
  kFailed,
};

/// "started" and so on.
const char* NameOf(FlightState state);

/// What reducing the gradients of steps has cost a rank: see <dtrun/detail/statistics.h>.
struct StepTotals {
  uint64_t steps = 0;
  int64_t total_ns = 0;    ///< from the end of one reduction to the end of the next
  int64_t exposed_ns = 0;  ///< of it, in the reducer
  int64_t late_ns = 0;     ///< of that, waiting for ranks that had not come
  uint64_t bytes = 0;      ///< that were reduced
  uint64_t buckets = 0;

  StepTotals& operator+=(const StepTotals& other) {
    steps += other.steps;
    total_ns += other.total_ns;
    exposed_ns += other.exposed_ns;
    late_ns += other.late_ns;
    bytes += other.bytes;
    buckets += other.buckets;
    return *this;
  }
  bool operator==(const StepTotals&) const = default;
};

// --- the format ----------------------------------------------------------------------------------
//
// A header, then a ring of entries. Operation `ordinal` of the rank, counted from 1 through all of
// its communicators, lies in entry (ordinal - 1) % entry_count. One thread at a time writes, of one
// process; any process reads at any moment:
//
//   the writer: mark = 0; the other words; mark = ordinal and kStarted
//               later     mark = ordinal and kMoving
//               later     end_ns; mark = ordinal and kDone or kFailed
//   a reader:   mark; the other words; mark again: they belong together when it is the same, not 0.
//               end_ns counts from kDone on.
//
// Every word but the first 0 is a release store and every load but the last an acquire: whoever has
// seen a word of a new operation also sees that the old mark is gone.

inline constexpr uint64_t kFlightMagic = 0x3152466e75727464;  // "dtrunFR1"
inline constexpr uint32_t kFlightVersion = 3;
inline constexpr uint32_t kFlightEntries = 256;

struct FlightHeader {
  std::atomic<uint64_t> magic;  ///< written last
  uint32_t version;
  uint32_t entry_count;  ///< a power of two
  uint32_t entry_bytes;
  int32_t rank;
  int32_t pid;
  /// Bytes of `gave_up` once that is written, which happens once.
  std::atomic<uint32_t> gave_up_bytes;
  int64_t
      unix_offset_ns;  ///< from the monotonic clock, which times are on, to that of the calendar
  char host[64];
  std::atomic<uint64_t> steps[6];       ///< StepTotals, in its order
  std::atomic<uint64_t> reported_step;  ///< what the program itself says (dtrun_report_progress)
  std::atomic<uint64_t> reported_examples;  ///< likewise
  std::atomic<uint64_t> waited_ns;          ///< for others, in calls of the program
  char gave_up[1872];  ///< the error with which this rank gave up waiting for others
};
static_assert(sizeof(FlightHeader) == 2048);

struct alignas(128) FlightEntry {
  static constexpr size_t kCallWords = 5;
  static constexpr size_t kNameWords = 7;

  std::atomic<uint64_t> mark;  ///< ordinal << 3 | state
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> start_ns, end_ns;
  std::atomic<uint64_t> call[kCallWords];          ///< the bytes of a Call
  std::atomic<uint64_t> communicator[kNameWords];  ///< its name, cut short, ends with a zero

  static uint64_t Mark(uint64_t ordinal, FlightState state) {
    return ordinal << 3 | static_cast<uint64_t>(state);
  }
};
static_assert(sizeof(FlightEntry) == 128);
static_assert(sizeof(Call) == FlightEntry::kCallWords * sizeof(uint64_t));

inline constexpr size_t FlightBytes(uint32_t entry_count) {
  return sizeof(FlightHeader) + entry_count * sizeof(FlightEntry);
}

/// The file of rank `rank` in the job's folder for flight records.
std::string FlightFile(const std::string& folder, int rank);

// --- what was read -------------------------------------------------------------------------------

struct FlightOperation {
  std::string communicator;
  uint64_t sequence = 0;
  Call call = {};
  FlightState state = FlightState::kNone;
  int64_t start_ns = 0;  ///< on the monotonic clock of the rank's host
  int64_t end_ns = 0;    ///< of kDone and kFailed
};

/// The last operations of one rank.
struct FlightRecord {
  int rank = 0;
  int pid = 0;
  std::string host;
  int64_t unix_offset_ns = 0;
  std::string gave_up;                      ///< "": it did not
  std::vector<FlightOperation> operations;  ///< oldest first
};

/// The record in this memory, which its rank may be writing; nothing when it is none or of another
/// version. An operation that was being written is left out.
std::optional<FlightRecord> ReadFlightRecord(const void* data, size_t bytes);

/// The record in this file; nothing when it is missing, damaged or no file.
std::optional<FlightRecord> ReadFlightFile(const std::string& path);

/// How far a rank has come, all since its start.
struct FlightProgress {
  int rank = 0;
  uint64_t step = 0;      ///< as the program says, else of which the gradients were reduced
  uint64_t examples = 0;  ///< 0: the program does not say
  int64_t waited_ns = 0;  ///< spent in waiting for others, but for the shortest waits
  StepTotals reduced = {};

  bool operator==(const FlightProgress&) const = default;
};

/// Reads only that of the record in this file; nothing when there is none.
std::optional<FlightProgress> ReadFlightProgress(const std::string& path);

/// What the rank is doing, or did last, to follow "rank 3 " (or the names of `ranks` ranks):
///   "is in collective #9, broadcast (f32, 7 elements, root 0), since 45 s"
///   "last finished collective #11, barrier, 31 s ago"
std::string PresentActivity(const FlightRecord& record, TimePoint now, size_t ranks = 1);

/// The same of a rank that is gone: "waited in collective #9, broadcast (f32, 7 elements, root 0)";
/// "last finished collective #11, barrier".
std::string PastActivity(const FlightRecord& record);

}  // namespace dtrun::base

#endif
