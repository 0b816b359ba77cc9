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

/// The progress of an operation.
enum class FlightState : uint8_t {
  kNone,     ///< the entry is empty, or is being written
  kStarted,  ///< this rank has called it
  kMoving,   ///< all ranks have called it, and data moves
  kDone,
  kFailed,
};

/// "started" and so on.
const char* NameOf(FlightState state);

/// The totals of a rank for reducing the gradients of its steps: see <dtrun/detail/statistics.h>.
struct StepTotals {
  uint64_t steps = 0;
  int64_t total_ns = 0;    ///< from the end of one reduction to the end of the next
  int64_t exposed_ns = 0;  ///< of total_ns: in the reducer
  int64_t late_ns = 0;     ///< of exposed_ns: waiting for ranks that had not come
  uint64_t bytes = 0;      ///< of reduced gradients
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
// A header comes first, then a ring of entries. Operation `ordinal` of the rank lies in entry
// (ordinal - 1) % entry_count. Ordinals count from 1, through all communicators of the rank. One
// thread of one process writes at a time. Any process may read at any time:
//
//   the writer: mark = 0; the other words; mark = ordinal and kStarted
//               later     mark = ordinal and kMoving
//               later     end_ns; mark = ordinal and kDone or kFailed
//   a reader:   mark; the other words; mark again. The words belong together if both marks are
//               equal and not 0. end_ns is valid from kDone on.
//
// Every word except the first 0 is a release store. Every load except the last is an acquire. So a
// reader that has seen a word of a new operation also sees that the old mark is gone.

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
  /// The length of `gave_up`, set when that is written. It is written at most once.
  std::atomic<uint32_t> gave_up_bytes;
  int64_t unix_offset_ns;  ///< calendar time = monotonic time + this
  char host[64];
  std::atomic<uint64_t> steps[6];           ///< StepTotals, in its order
  std::atomic<uint64_t> reported_step;      ///< as the program reports it (dtrun_report_progress)
  std::atomic<uint64_t> reported_examples;  ///< as the program reports it
  std::atomic<uint64_t> waited_ns;          ///< waiting for other ranks, in calls of the program
  char gave_up[1872];  ///< the error with which this rank gave up waiting for other ranks
};
static_assert(sizeof(FlightHeader) == 2048);

struct alignas(128) FlightEntry {
  static constexpr size_t kCallWords = 5;
  static constexpr size_t kNameWords = 7;

  std::atomic<uint64_t> mark;  ///< ordinal << 3 | state
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> start_ns, end_ns;
  std::atomic<uint64_t> call[kCallWords];          ///< the bytes of a Call
  std::atomic<uint64_t> communicator[kNameWords];  ///< its name, cut short, with a zero at the end

  static uint64_t Mark(uint64_t ordinal, FlightState state) {
    return ordinal << 3 | static_cast<uint64_t>(state);
  }
};
static_assert(sizeof(FlightEntry) == 128);
static_assert(sizeof(Call) == FlightEntry::kCallWords * sizeof(uint64_t));

inline constexpr size_t FlightBytes(uint32_t entry_count) {
  return sizeof(FlightHeader) + entry_count * sizeof(FlightEntry);
}

/// The path of the flight record of rank `rank` in the job's folder for flight records.
std::string FlightFile(const std::string& folder, int rank);

// --- records as they are read --------------------------------------------------------------------

struct FlightOperation {
  std::string communicator;
  uint64_t sequence = 0;
  Call call = {};
  FlightState state = FlightState::kNone;
  int64_t start_ns = 0;  ///< on the monotonic clock of the rank's host
  int64_t end_ns = 0;    ///< set for kDone and kFailed
};

/// The last operations of one rank.
struct FlightRecord {
  int rank = 0;
  int pid = 0;
  std::string host;
  int64_t unix_offset_ns = 0;
  std::string gave_up;                      ///< "" if it did not
  std::vector<FlightOperation> operations;  ///< oldest first
};

/// Reads the record in this memory, which its rank may be writing. Returns nullopt for other data
/// and for another version of the format. An operation that is being written is left out.
std::optional<FlightRecord> ReadFlightRecord(const void* data, size_t bytes);

/// Reads the record in this file. Returns nullopt if the file is missing, damaged or not a regular
/// file.
std::optional<FlightRecord> ReadFlightFile(const std::string& path);

/// The progress of a rank since its start.
struct FlightProgress {
  int rank = 0;
  uint64_t step = 0;      ///< as the program reports it; otherwise the number of reduced steps
  uint64_t examples = 0;  ///< 0 if the program does not report it
  int64_t waited_ns = 0;  ///< spent waiting for other ranks, without the shortest waits
  StepTotals reduced = {};

  bool operator==(const FlightProgress&) const = default;
};

/// Reads only the progress from the record in this file. Returns nullopt if there is none.
std::optional<FlightProgress> ReadFlightProgress(const std::string& path);

/// The present or last activity of a rank, to follow "rank 3 " (or the names of `ranks` ranks):
///   "is in collective #9, broadcast (f32, 7 elements, root 0), since 45 s"
///   "last finished collective #11, barrier, 31 s ago"
std::string PresentActivity(const FlightRecord& record, TimePoint now, size_t ranks = 1);

/// The same for a rank that is gone: "waited in collective #9, broadcast (f32, 7 elements, root
/// 0)"; "last finished collective #11, barrier".
std::string PastActivity(const FlightRecord& record);

}  // namespace dtrun::base

#endif
