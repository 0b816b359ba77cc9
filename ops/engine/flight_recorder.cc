#include "ops/engine/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "ops/bootstrap/segment.h"

namespace dtrun::ops {
namespace {

using base::FlightEntry;
using base::FlightHeader;
using base::FlightState;

constexpr size_t kBytes = base::FlightBytes(base::kFlightEntries);

int64_t UnixOffsetNs() {
  using std::chrono::duration_cast;
  using std::chrono::nanoseconds;
  const auto monotonic = std::chrono::steady_clock::now().time_since_epoch();
  const auto calendar = std::chrono::system_clock::now().time_since_epoch();
  return (duration_cast<nanoseconds>(calendar) - duration_cast<nanoseconds>(monotonic)).count();
}

uint64_t Nanoseconds(base::TimePoint time) {
  return static_cast<uint64_t>(time.time_since_epoch().count());
}

// Stores only the words that the name needs. Readers ignore the bytes after its zero.
void StoreName(const std::string& name, std::atomic<uint64_t> (&words)[FlightEntry::kNameWords]) {
  const size_t length = std::min(name.size(), sizeof words - 1);
  for (size_t word = 0; word <= length / sizeof(uint64_t); ++word) {
    const size_t begin = word * sizeof(uint64_t);
    uint64_t bytes = 0;
    std::memcpy(&bytes, name.data() + begin, std::min(length - begin, sizeof bytes));
    words[word].store(bytes, std::memory_order_release);
  }
}

}  // namespace

std::shared_ptr<FlightRecorder> FlightRecorder::InFile(
    const std::string& path, int rank, const std::string& host) {
  const FileDescriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) ThrowErrno("open of " + path);
  // Allocated now, because a full disk would raise a signal later.
  errno = ::posix_fallocate(file.get(), 0, kBytes);
  if (errno != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    errno = error;
    ThrowErrno("posix_fallocate of " + path);
  }
  void* data =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (data == MAP_FAILED) ThrowErrno("mmap of " + path);
  return Begin(data, rank, host);
}

std::shared_ptr<FlightRecorder> FlightRecorder::InMemory(int rank, const std::string& host) {
  void* data = ::mmap(
      nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED) ThrowErrno("mmap of the flight record");
  return Begin(data, rank, host);
}

std::shared_ptr<FlightRecorder> FlightRecorder::Begin(
    void* data, int rank, const std::string& host) {
  ::madvise(data, kBytes, MADV_DONTFORK);
  std::shared_ptr<FlightRecorder> recorder(new FlightRecorder(data));
  FlightHeader& header = *recorder->header_;
  header.version = base::kFlightVersion;
  header.entry_count = base::kFlightEntries;
  header.entry_bytes = sizeof(FlightEntry);
  header.rank = rank;
  header.pid = ::getpid();
  header.unix_offset_ns = UnixOffsetNs();
  host.copy(header.host, sizeof header.host - 1);
  header.magic.store(base::kFlightMagic, std::memory_order_release);
  return recorder;
}

FlightRecorder::FlightRecorder(void* data)
    : header_(static_cast<FlightHeader*>(data)),
      entries_(reinterpret_cast<FlightEntry*>(header_ + 1)) {}

FlightRecorder::~FlightRecorder() { ::munmap(header_, kBytes); }

uint64_t FlightRecorder::Start(
    const std::string& communicator, uint64_t sequence, const base::Call& call,
    base::TimePoint now) {
  const uint64_t ordinal = ++started_;
  FlightEntry& entry = EntryOf(ordinal);
  entry.mark.store(0, std::memory_order_relaxed);
  entry.sequence.store(sequence, std::memory_order_release);
  entry.start_ns.store(Nanoseconds(now), std::memory_order_release);
  uint64_t words[FlightEntry::kCallWords];
  std::memcpy(words, &call, sizeof words);
  for (size_t i = 0; i < FlightEntry::kCallWords; ++i) {
    entry.call[i].store(words[i], std::memory_order_release);
  }
  StoreName(communicator, entry.communicator);
  entry.mark.store(FlightEntry::Mark(ordinal, FlightState::kStarted), std::memory_order_release);
  return ordinal;
}

void FlightRecorder::Move(uint64_t ordinal) {
  FlightEntry& entry = EntryOf(ordinal);
  if (!Holds(entry, ordinal)) return;
  entry.mark.store(FlightEntry::Mark(ordinal, FlightState::kMoving), std::memory_order_release);
}

void FlightRecorder::End(uint64_t ordinal, FlightState state, base::TimePoint now) {
  FlightEntry& entry = EntryOf(ordinal);
  if (!Holds(entry, ordinal)) return;
  entry.end_ns.store(Nanoseconds(now), std::memory_order_release);
  entry.mark.store(FlightEntry::Mark(ordinal, state), std::memory_order_release);
}

void FlightRecorder::GiveUp(const std::string& error) {
  if (header_->gave_up_bytes.load(std::memory_order_relaxed) != 0) return;
  const size_t bytes = error.copy(header_->gave_up, sizeof header_->gave_up);
  header_->gave_up_bytes.store(static_cast<uint32_t>(bytes), std::memory_order_release);
}

void FlightRecorder::AddSteps(const base::StepTotals& steps) {
  const uint64_t amounts[] = {
      steps.steps,
      static_cast<uint64_t>(steps.total_ns),
      static_cast<uint64_t>(steps.exposed_ns),
      static_cast<uint64_t>(steps.late_ns),
      steps.bytes,
      steps.buckets};
  static_assert(std::size(amounts) == std::extent_v<decltype(FlightHeader::steps)>);
  for (size_t i = 0; i < std::size(amounts); ++i)
    header_->steps[i].fetch_add(amounts[i], std::memory_order_relaxed);
}

void FlightRecorder::ReportProgress(uint64_t step, uint64_t examples) {
  header_->reported_step.store(step, std::memory_order_relaxed);
  header_->reported_examples.store(examples, std::memory_order_relaxed);
}

uint64_t FlightRecorder::step() const {
  const uint64_t reported = header_->reported_step.load(std::memory_order_relaxed);
  return reported > 0 ? reported : header_->steps[0].load(std::memory_order_relaxed);
}

void FlightRecorder::AddWaiting(base::Duration duration) {
  const auto ns = static_cast<uint64_t>(std::max<int64_t>(duration.count(), 0));
  header_->waited_ns.fetch_add(ns, std::memory_order_relaxed);
}

base::Duration FlightRecorder::waited() const {
  return base::Duration(header_->waited_ns.load(std::memory_order_relaxed));
}

base::FlightRecord FlightRecorder::Read() const {
  return base::ReadFlightRecord(header_, kBytes).value();
}

}  // namespace dtrun::ops
