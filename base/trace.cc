#include "base/trace.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <tuple>

#include "base/text.h"

namespace dtrun::base {
namespace {

constexpr std::string_view kTraceName = "trace.";
constexpr size_t kCallWords = sizeof(Call) / sizeof(uint64_t);

// Returns 0 for a time that no clock shows, so that calculations with times do not overflow.
int64_t TimeOf(uint64_t word) { return word < uint64_t{1} << 61 ? static_cast<int64_t>(word) : 0; }

// Reads one record after the other. It reads only these slots, even if they hold any bytes.
class Reader {
 public:
  Reader(const TraceHeader& header, uint64_t slots, RankTrace& trace)
      : slots_(reinterpret_cast<const TraceSlot*>(&header + 1)), count_(slots), trace_(trace) {}

  void ReadAll() {
    for (uint64_t slot = 0; slot < count_;) {
      const TraceHead head = TraceHead::Unpack(Word(slot, 0));
      const bool one = head.type == TraceType::kNone || head.type == TraceType::kMark;
      const uint64_t length = one ? 1 : std::max<uint64_t>(head.slots, 1);
      if (length > count_ - slot) return;
      Take(head, slot, 2 * length - 1);
      slot += length;
    }
  }

 private:
  // Word `i` of the slots from `slot` on.
  uint64_t Word(uint64_t slot, uint64_t i) const {
    return slots_[slot + i / 2].words[i % 2].load(std::memory_order_acquire);
  }

  std::string TextFrom(uint64_t slot, uint64_t first, uint64_t words) const {
    std::string text;
    for (uint64_t i = first; i <= words; ++i) {
      char bytes[sizeof(uint64_t)];
      const uint64_t word = Word(slot, i);
      std::memcpy(bytes, &word, sizeof bytes);
      text.append(bytes, sizeof bytes);
    }
    return text.substr(0, text.find('\0'));
  }

  int64_t Time(uint64_t slot) {
    const int64_t time = TimeOf(Word(slot, 1));
    trace_.last_ns = std::max(trace_.last_ns, time);
    return time;
  }

  // `words`: the number of words after the head.
  void Take(const TraceHead& head, uint64_t slot, uint64_t words) {
    switch (head.type) {
      case TraceType::kNone:
      case TraceType::kBegun:
      case TraceType::kReducer: break;
      case TraceType::kCommunicator:
        trace_.communicators[head.id] = TextFrom(slot, 1, words);
        break;
      case TraceType::kThread: trace_.threads[head.id] = TextFrom(slot, 1, words); break;
      case TraceType::kGradient: {
        const uint64_t key = Word(slot, 1);
        trace_.gradients[{static_cast<uint32_t>(key >> 32), static_cast<uint32_t>(key)}] =
            TextFrom(slot, 2, words);
        break;
      }
      case TraceType::kStarted:
        if (words >= kCallWords + 3) TakeStart(head, slot);
        break;
      case TraceType::kEnded:
        if (words >= 3) TakeEnd(head, slot);
        break;
      case TraceType::kMark:
        trace_.marks.push_back({head.thread, head.slots, head.id, Time(slot)});
        break;
      case TraceType::kBucket: {
        const uint64_t key = Word(slot, 1);
        buckets_[head.thread] = {static_cast<uint32_t>(key >> 32), static_cast<uint32_t>(key)};
        break;
      }
      case TraceType::kWaitBegins:
        open_waits_[head.id] = trace_.waits.size();
        trace_.waits.push_back({head.thread, head.id, Time(slot), 0});
        break;
      case TraceType::kWaitEnds: TakeWaitEnd(head, slot); break;
      case TraceType::kTensor: trace_.tensor_names[head.id] = TextFrom(slot, 1, words); break;
      case TraceType::kSubmitted:
        open_tensors_[head.id] = trace_.tensors.size();
        trace_.tensors.push_back({head.id, Time(slot)});
        break;
      case TraceType::kAgreed:
        if (const auto found = open_tensors_.find(head.id); found != open_tensors_.end())
          trace_.tensors[found->second].agreed_ns = Time(slot);
        break;
      case TraceType::kTensorEnds:
        if (words >= 2) TakeTensorEnd(head, slot);
        break;
    }
  }

  void TakeStart(const TraceHead& head, uint64_t slot) {
    TracedOperation operation;
    operation.start_ns = Time(slot);
    operation.sequence = Word(slot, 2);
    uint64_t call[kCallWords];
    for (size_t i = 0; i < kCallWords; ++i) call[i] = Word(slot, 3 + i);
    std::memcpy(&operation.call, call, sizeof call);
    const uint64_t place = Word(slot, 3 + kCallWords);
    operation.communicator = static_cast<uint32_t>(place >> 32);
    operation.own_rank = static_cast<int>(place & 0x7fffffff);
    if (const auto bucket = buckets_.find(head.thread); bucket != buckets_.end()) {
      operation.bucket = bucket->second;
      buckets_.erase(bucket);
    }
    open_[head.id] = trace_.operations.size();
    trace_.operations.push_back(operation);
  }

  void TakeEnd(const TraceHead& head, uint64_t slot) {
    const auto found = open_.find(head.id);
    if (found == open_.end()) return;
    TracedOperation& operation = trace_.operations[found->second];
    operation.end_ns = Time(slot);
    operation.arrival_ns = TimeOf(Word(slot, 2));
    operation.failed = Word(slot, 3) != 0;
    open_.erase(found);
  }

  void TakeWaitEnd(const TraceHead& head, uint64_t slot) {
    const auto found = open_waits_.find(head.id);
    if (found == open_waits_.end()) {  // the wait began before the trace
      trace_.waits.push_back({head.thread, head.id, 0, Time(slot)});
      return;
    }
    trace_.waits[found->second].end_ns = Time(slot);
    open_waits_.erase(found);
  }

  void TakeTensorEnd(const TraceHead& head, uint64_t slot) {
    const auto found = open_tensors_.find(head.id);
    if (found == open_tensors_.end()) return;
    trace_.tensors[found->second].end_ns = Time(slot);
    trace_.tensors[found->second].failed = Word(slot, 2) != 0;
    open_tensors_.erase(found);
  }

  const TraceSlot* slots_;
  uint64_t count_;
  RankTrace& trace_;
  std::map<uint32_t, size_t> open_, open_waits_, open_tensors_;
  std::map<uint8_t, std::pair<uint32_t, uint32_t>> buckets_;  // of the next operation, by thread
};

// The number of slots in use, if `data` is a trace.
std::optional<uint64_t> SlotsOf(const void* data, size_t bytes) {
  if (bytes < sizeof(TraceHeader)) return std::nullopt;
  const auto& header = *static_cast<const TraceHeader*>(data);
  if (header.magic.load(std::memory_order_acquire) != kTraceMagic) return std::nullopt;
  const uint64_t there = (bytes - sizeof(TraceHeader)) / sizeof(TraceSlot);
  return std::min({header.used.load(std::memory_order_acquire), header.slot_count, there});
}

}  // namespace

std::string TraceFile(const std::string& folder, int rank, uint32_t epoch) {
  return Text(folder, '/', kTraceName, rank, '.', epoch);
}

std::vector<FoundTrace> FindTraces(const std::string& folder) {
  std::vector<FoundTrace> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kTraceName) || entry.is_symlink(error)) continue;
    const std::string numbers = name.substr(kTraceName.size());
    const size_t dot = numbers.find('.');
    const auto rank = ParseInteger(numbers.substr(0, dot));
    const auto epoch = ParseInteger(dot == std::string::npos ? "" : numbers.substr(dot + 1));
    if (!rank || !epoch || *rank < 0 || *rank > INT32_MAX || *epoch < 0 || *epoch > UINT32_MAX)
      continue;
    found.push_back({static_cast<int>(*rank), static_cast<uint32_t>(*epoch), entry.path()});
  }
  std::sort(found.begin(), found.end(), [](const FoundTrace& a, const FoundTrace& b) {
    return std::tie(a.rank, a.epoch) < std::tie(b.rank, b.epoch);
  });
  return found;
}

size_t UsedTraceBytes(const void* data, size_t bytes) {
  const auto slots = SlotsOf(data, bytes);
  return slots ? TraceBytes(*slots) : 0;
}

void WithTraceFile(
    const std::string& path, const std::function<void(const void* data, size_t bytes)>& use) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return;
  struct stat status = {};
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    const auto bytes = static_cast<size_t>(status.st_size);
    void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
    if (data != MAP_FAILED) {
      if (const size_t used = UsedTraceBytes(data, bytes); used > 0) use(data, used);
      ::munmap(data, bytes);
    }
  }
  ::close(file);
}

void TrimTraceFile(const std::string& path) {
  off_t used = 0;
  WithTraceFile(path, [&](const void*, size_t bytes) { used = static_cast<off_t>(bytes); });
  if (used > 0 && ::truncate(path.c_str(), used) != 0) return;  // it stays large
}

std::optional<RankTrace> ReadTrace(const void* data, size_t bytes) {
  const auto slots = SlotsOf(data, bytes);
  if (!slots) return std::nullopt;
  const auto& header = *static_cast<const TraceHeader*>(data);
  RankTrace trace;
  trace.rank = header.rank;
  trace.size = header.size;
  trace.pid = header.pid;
  trace.epoch = header.epoch;
  trace.host = std::string(header.host, strnlen(header.host, sizeof header.host));
  trace.start_ns = trace.last_ns = TimeOf(static_cast<uint64_t>(header.start_ns));
  trace.unix_offset_ns = TimeOf(static_cast<uint64_t>(header.unix_offset_ns));
  trace.dropped = header.dropped.load(std::memory_order_relaxed);
  Reader(header, *slots, trace).ReadAll();
  return trace;
}

}  // namespace dtrun::base
