#include "base/flight_record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace dtrun::base {
namespace {

constexpr uint32_t kMostEntries = 1 << 16;
constexpr int kTries = 4;

// Makes one line of any bytes.
std::string Printable(const char* text, size_t bytes) {
  std::string printable(text, strnlen(text, bytes));
  for (char& c : printable)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  return printable;
}

bool IsFlightHeader(const FlightHeader& header, size_t bytes) {
  return header.magic.load(std::memory_order_acquire) == kFlightMagic &&
         header.version == kFlightVersion && header.entry_bytes == sizeof(FlightEntry) &&
         header.entry_count > 0 && header.entry_count <= kMostEntries &&
         (header.entry_count & (header.entry_count - 1)) == 0 &&
         bytes >= FlightBytes(header.entry_count);
}

template <size_t kWords>
void CopyWords(const std::atomic<uint64_t> (&from)[kWords], void* to) {
  uint64_t words[kWords];
  for (size_t i = 0; i < kWords; ++i) words[i] = from[i].load(std::memory_order_acquire);
  std::memcpy(to, words, sizeof words);
}

struct Numbered {
  uint64_t ordinal = 0;
  FlightOperation operation;
};

// Returns nullopt if the entry is being written, or if its writer was killed while writing it.
std::optional<Numbered> TryReadEntry(const FlightEntry& entry, uint32_t index, uint32_t count) {
  const uint64_t mark = entry.mark.load(std::memory_order_acquire);
  Numbered read{.ordinal = mark >> 3, .operation = {}};
  FlightOperation& operation = read.operation;
  operation.state = static_cast<FlightState>(mark & 7);
  if (operation.state == FlightState::kNone || operation.state > FlightState::kFailed ||
      read.ordinal == 0 || (read.ordinal - 1) % count != index) {
    return std::nullopt;
  }
  operation.sequence = entry.sequence.load(std::memory_order_acquire);
  operation.start_ns = static_cast<int64_t>(entry.start_ns.load(std::memory_order_acquire));
  const auto end_ns = static_cast<int64_t>(entry.end_ns.load(std::memory_order_acquire));
  if (operation.state >= FlightState::kDone) operation.end_ns = end_ns;
  CopyWords(entry.call, &operation.call);
  char name[sizeof entry.communicator];
  CopyWords(entry.communicator, name);
  operation.communicator = Printable(name, sizeof name);
  if (entry.mark.load(std::memory_order_relaxed) != mark) return std::nullopt;
  return read;
}

std::optional<Numbered> ReadEntry(const FlightEntry& entry, uint32_t index, uint32_t count) {
  std::optional<Numbered> read;
  for (int i = 0; i < kTries && !read; ++i) read = TryReadEntry(entry, index, count);
  return read;
}

// Returns the first operation that has not ended, otherwise the last operation. The record must
// have operations.
const FlightOperation& Telling(const FlightRecord& record) {
  const auto open = std::find_if(
      record.operations.begin(), record.operations.end(),
      [](const FlightOperation& operation) { return operation.state < FlightState::kDone; });
  return open != record.operations.end() ? *open : record.operations.back();
}

std::string Name(const FlightOperation& operation) {
  return NameOperation(operation.call, operation.sequence, operation.communicator);
}

int64_t SecondsSince(int64_t ns, TimePoint now) {
  int64_t age_ns = 0;  // of any `ns`: another process has written it
  if (__builtin_sub_overflow(Duration(now.time_since_epoch()).count(), ns, &age_ns)) return 0;
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(Duration(age_ns));
  return std::max<int64_t>(age.count(), 0);
}

}  // namespace

const char* NameOf(FlightState state) {
  switch (state) {
    case FlightState::kNone: return "none";
    case FlightState::kStarted: return "started";
    case FlightState::kMoving: return "moving";
    case FlightState::kDone: return "done";
    case FlightState::kFailed: return "failed";
  }
  return "unknown state";
}

std::string FlightFile(const std::string& folder, int rank) { return Text(folder, '/', rank); }

std::optional<FlightRecord> ReadFlightRecord(const void* data, size_t bytes) {
  if (bytes < sizeof(FlightHeader)) return std::nullopt;
  const auto& header = *static_cast<const FlightHeader*>(data);
  if (!IsFlightHeader(header, bytes)) return std::nullopt;
  FlightRecord record;
  record.rank = header.rank;
  record.pid = header.pid;
  record.host = Printable(header.host, sizeof header.host);
  record.unix_offset_ns = header.unix_offset_ns;
  record.gave_up = Printable(
      header.gave_up,
      std::min<size_t>(
          header.gave_up_bytes.load(std::memory_order_acquire), sizeof header.gave_up));
  const auto* entries = reinterpret_cast<const FlightEntry*>(&header + 1);
  std::vector<Numbered> found;
  for (uint32_t i = 0; i < header.entry_count; ++i) {
    if (auto entry = ReadEntry(entries[i], i, header.entry_count)) {
      found.push_back(std::move(*entry));
    }
  }
  std::sort(found.begin(), found.end(), [](const Numbered& a, const Numbered& b) {
    return a.ordinal < b.ordinal;
  });
  for (Numbered& entry : found) record.operations.push_back(std::move(entry.operation));
  return record;
}

namespace {

// Returns the result of `read` for the first `most_bytes` of the file's content.
template <typename Result>
std::optional<Result> ReadFile(
    const std::string& path, size_t most_bytes,
    std::optional<Result> (*read)(const void* data, size_t bytes)) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return std::nullopt;
  struct stat status = {};
  std::optional<Result> result;
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    const size_t bytes = std::min(static_cast<size_t>(status.st_size), most_bytes);
    void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
    if (data != MAP_FAILED) {
      result = read(data, bytes);
      ::munmap(data, bytes);
    }
  }
  ::close(file);
  return result;
}

// `data` may end with the header. So IsFlightHeader gets a size that is large enough for any
// entries.
std::optional<FlightProgress> ReadProgress(const void* data, size_t bytes) {
  if (bytes < sizeof(FlightHeader)) return std::nullopt;
  const auto& header = *static_cast<const FlightHeader*>(data);
  if (!IsFlightHeader(header, FlightBytes(kMostEntries))) return std::nullopt;
  const auto read = [](const std::atomic<uint64_t>& word) {
    return word.load(std::memory_order_relaxed);
  };
  const uint64_t step = read(header.reported_step), examples = read(header.reported_examples);
  const bool reported = step > 0 || examples > 0;
  const StepTotals reduced = {
      .steps = read(header.steps[0]),
      .total_ns = static_cast<int64_t>(read(header.steps[1])),
      .exposed_ns = static_cast<int64_t>(read(header.steps[2])),
      .late_ns = static_cast<int64_t>(read(header.steps[3])),
      .bytes = read(header.steps[4]),
      .buckets = read(header.steps[5])};
  return FlightProgress{
      .rank = header.rank,
      .step = reported ? step : reduced.steps,
      .examples = examples,
      .waited_ns = static_cast<int64_t>(read(header.waited_ns)),
      .reduced = reduced};
}

}  // namespace

std::optional<FlightRecord> ReadFlightFile(const std::string& path) {
  return ReadFile<FlightRecord>(path, FlightBytes(kMostEntries), ReadFlightRecord);
}

std::optional<FlightProgress> ReadFlightProgress(const std::string& path) {
  return ReadFile<FlightProgress>(path, sizeof(FlightHeader), ReadProgress);
}

std::string PresentActivity(const FlightRecord& record, TimePoint now, size_t ranks) {
  if (record.operations.empty()) return "called nothing yet";
  const FlightOperation& last = Telling(record);
  switch (last.state) {
    case FlightState::kMoving:
      return Text(
          ranks == 1 ? "moves" : "move", " data in ", Name(last), ", since ",
          SecondsSince(last.start_ns, now), " s");
    case FlightState::kDone:
      return Text("last finished ", Name(last), ", ", SecondsSince(last.end_ns, now), " s ago");
    case FlightState::kFailed:
      return Text("failed in ", Name(last), ", ", SecondsSince(last.end_ns, now), " s ago");
    case FlightState::kNone:
    case FlightState::kStarted: break;
  }
  return Text(
      ranks == 1 ? "is" : "are", " in ", Name(last), ", since ", SecondsSince(last.start_ns, now),
      " s");
}

std::string PastActivity(const FlightRecord& record) {
  if (record.operations.empty()) return "called nothing";
  const FlightOperation& last = Telling(record);
  switch (last.state) {
    case FlightState::kMoving: return "moved data in " + Name(last);
    case FlightState::kDone: return "last finished " + Name(last);
    case FlightState::kFailed: return "failed in " + Name(last);
    case FlightState::kNone:
    case FlightState::kStarted: break;
  }
  return "waited in " + Name(last);
}

}  // namespace dtrun::base
