#ifndef DTRUN_BASE_TRACE_H_
#define DTRUN_BASE_TRACE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/call.h"

namespace dtrun::base {

// --- the format ----------------------------------------------------------------------------------
//
// A rank writes a trace while its timeline is on: a header, then slots of two words. A record takes
// one or more slots, one after the other. Its first word is its head. The head is stored last, so
// that a reader sees only whole records, at any time. A record that was begun and not finished has
// a head of type kBegun, with its length. Threads reserve slots by one atomic addition. If no slots
// are left, records are counted and dropped. Times are nanoseconds on the monotonic clock of the
// rank's host.

inline constexpr uint64_t kTraceMagic = 0x3143525475727464;  // "dtruTRC1"

/// The subject of a record, and the words after its head.
enum class TraceType : uint8_t {
  kNone,          ///< an empty slot
  kBegun,         ///< of unknown content
  kCommunicator,  ///< its name; id: its number
  kThread,        ///< its name; id: its number
  kReducer,       ///< no words; id: its number
  kGradient,      ///< reducer << 32 | index, then its name
  kStarted,       ///< time, sequence, a Call, communicator << 32 | own rank; id: operation
  kEnded,         ///< time, arrival of all ranks (0: not known), 1 if it failed; id: operation
  kMark,          ///< time; id: gradient; reducer: see TraceHead
  kBucket,        ///< reducer << 32 | bucket, of the operation that this thread starts next
  kWaitBegins,    ///< time; id: reducer
  kWaitEnds,      ///< time; id: reducer
  kTensor,        ///< name of a named tensor; id: its number
  kSubmitted,     ///< time at which this rank submitted it; id: tensor
  kAgreed,        ///< time at which it was known that all ranks have; id: tensor
  kTensorEnds,    ///< time, 1 if it failed; id: tensor
};

/// The first word of a record.
struct TraceHead {
  TraceType type = TraceType::kNone;
  uint8_t thread = 0;  ///< number of the thread that wrote it
  uint16_t slots = 1;  ///< of the whole record; of kMark, which takes one slot, its reducer
  uint32_t id = 0;

  uint64_t Pack() const {
    return static_cast<uint64_t>(type) | uint64_t{thread} << 8 | uint64_t{slots} << 16 |
           uint64_t{id} << 32;
  }
  static TraceHead Unpack(uint64_t word) {
    return {
        static_cast<TraceType>(word & 0xff), static_cast<uint8_t>(word >> 8),
        static_cast<uint16_t>(word >> 16), static_cast<uint32_t>(word >> 32)};
  }
};

struct TraceSlot {
  std::atomic<uint64_t> words[2];
};

struct TraceHeader {
  std::atomic<uint64_t> magic;  ///< written last
  int32_t rank;
  int32_t size;
  int32_t pid;
  uint32_t epoch;
  uint64_t slot_count;
  std::atomic<uint64_t> used;     ///< slots; more than slot_count if records were dropped
  std::atomic<uint64_t> dropped;  ///< records
  int64_t start_ns;
  int64_t unix_offset_ns;  ///< calendar time = monotonic time + this
  char host[64];
};

inline constexpr size_t TraceBytes(uint64_t slot_count) {
  return sizeof(TraceHeader) + slot_count * sizeof(TraceSlot);
}

/// The most slots that a rank writes: 16 MiB, about a million marks.
inline constexpr uint64_t kMostTraceSlots = (16 << 20) / sizeof(TraceSlot);

/// The path of a trace in the job's folder for flight records. A rank writes one in each epoch of
/// the job (LaunchEnv::epoch).
std::string TraceFile(const std::string& folder, int rank, uint32_t epoch);

/// A file in the job's folder that has the name of a trace.
struct FoundTrace {
  int rank;
  uint32_t epoch;
  std::string path;
};

/// The traces in the folder, by rank and epoch.
std::vector<FoundTrace> FindTraces(const std::string& folder);

// --- traces as they are read ---------------------------------------------------------------------

struct TracedOperation {
  uint32_t communicator = 0;
  int own_rank = 0;  ///< in the communicator
  uint64_t sequence = 0;
  Call call = {};
  int64_t start_ns = 0, arrival_ns = 0, end_ns = 0;  ///< 0: not known, or not yet
  bool failed = false;
  std::optional<std::pair<uint32_t, uint32_t>> bucket = std::nullopt;  ///< reducer, its bucket
};

struct TracedMark {
  uint8_t thread = 0;
  uint32_t reducer = 0, gradient = 0;
  int64_t time_ns = 0;
};

/// A wait of the reducer. One of the two times may be 0: not recorded.
struct TracedWait {
  uint8_t thread = 0;
  uint32_t reducer = 0;
  int64_t begin_ns = 0, end_ns = 0;
};

/// One submission of a named tensor. Times that are not known are 0.
struct TracedTensor {
  uint32_t tensor = 0;
  int64_t submit_ns = 0, agreed_ns = 0, end_ns = 0;
  bool failed = false;
};

/// The trace of one rank in one epoch, with the times as the rank wrote them.
struct RankTrace {
  int rank = 0, size = 1, pid = 0;
  uint32_t epoch = 0;
  std::string host;
  int64_t start_ns = 0, unix_offset_ns = 0;
  int64_t last_ns = 0;  ///< of the latest record
  uint64_t dropped = 0;
  std::map<uint32_t, std::string> communicators;
  std::map<uint32_t, std::string> threads;
  std::map<std::pair<uint32_t, uint32_t>, std::string> gradients;  ///< by reducer and index
  std::vector<TracedOperation> operations;                         ///< in the order of their start
  std::vector<TracedMark> marks;
  std::vector<TracedWait> waits;
  std::map<uint32_t, std::string> tensor_names;
  std::vector<TracedTensor> tensors;  ///< in the order of their submission
};

/// Reads the trace in this memory, which is aligned like words. Its rank may be writing it. Returns
/// nullopt for other data.
std::optional<RankTrace> ReadTrace(const void* data, size_t bytes);

/// The number of bytes in use of the trace in this memory; 0 for other data.
size_t UsedTraceBytes(const void* data, size_t bytes);

/// Calls `use` with the used part of the trace in this file. If the file is missing, damaged or not
/// a regular file, does not call `use`.
void WithTraceFile(
    const std::string& path, const std::function<void(const void* data, size_t bytes)>& use);

/// Removes the unused end of the trace in this file, whose rank no longer writes.
void TrimTraceFile(const std::string& path);

}  // namespace dtrun::base

#endif
