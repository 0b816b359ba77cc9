#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text.h"
#include "ops/bootstrap/segment.h"
#include "runtime/timeline/job_timeline.h"

namespace dtrun::runtime {
namespace {

using base::TraceHead;
using base::TraceHeader;
using base::TraceSlot;
using base::TraceType;

constexpr uint64_t kLeastSlots = (1 << 20) / sizeof(TraceSlot);
constexpr size_t kMostText = 4000;  // bytes

int64_t MonotonicNs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

int64_t UnixOffsetNs() {
  const auto calendar = std::chrono::system_clock::now().time_since_epoch();
  return calendar / std::chrono::nanoseconds(1) - MonotonicNs();
}

void* Map(size_t bytes, int flags, int file) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, file, 0);
  if (data == MAP_FAILED) ops::ThrowErrno("mmap of the timeline");
  ::madvise(data, bytes, MADV_DONTFORK);
  return data;
}

}  // namespace

std::shared_ptr<TraceBuffer> TraceBuffer::InFile(const std::string& path, const Owner& owner) {
  const ops::FileDescriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) ops::ThrowErrno("open of " + path);
  // Allocates the disk space now. Later, a full disk would end the process by a signal.
  for (uint64_t slots = base::kMostTraceSlots;; slots /= 2) {
    const size_t bytes = base::TraceBytes(slots);
    errno = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
    if (errno == 0)
      return std::shared_ptr<TraceBuffer>(
          new TraceBuffer(Map(bytes, MAP_SHARED, file.get()), bytes, path, owner));
    const int error = errno;
    const bool emptied = ::ftruncate(file.get(), 0) == 0;
    if (error == ENOSPC && emptied && slots > kLeastSlots) continue;
    ::unlink(path.c_str());
    errno = error;
    ops::ThrowErrno("posix_fallocate of " + path);
  }
}

std::shared_ptr<TraceBuffer> TraceBuffer::InMemory(const Owner& owner) {
  const size_t bytes = base::TraceBytes(base::kMostTraceSlots);
  return std::shared_ptr<TraceBuffer>(
      new TraceBuffer(Map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1), bytes, "", owner));
}

TraceBuffer::TraceBuffer(void* data, size_t bytes, std::string path, const Owner& owner)
    : header_(static_cast<TraceHeader*>(data)),
      slots_(reinterpret_cast<TraceSlot*>(header_ + 1)),
      bytes_(bytes),
      path_(std::move(path)) {
  header_->rank = owner.rank;
  header_->size = owner.size;
  header_->pid = ::getpid();
  header_->epoch = owner.epoch;
  owner.host.copy(header_->host, sizeof header_->host - 1);
  header_->slot_count = (bytes - sizeof *header_) / sizeof(TraceSlot);
}

TraceBuffer::~TraceBuffer() {
  ::munmap(header_, bytes_);
  if (!path_.empty()) base::TrimTraceFile(path_);
}

void TraceBuffer::TurnOn() {
  header_->start_ns = MonotonicNs();
  header_->unix_offset_ns = UnixOffsetNs();
  header_->magic.store(base::kTraceMagic, std::memory_order_release);
  threads_ = 0;
  for (auto& id : thread_ids_) id = 0;
  on_.store(true, std::memory_order_relaxed);
}

// Clears the slots of the first page one by one, because the header stays. The other pages are
// returned to the system, and come back as zeros.
void TraceBuffer::Clear() {
  header_->used.store(0, std::memory_order_relaxed);
  header_->dropped.store(0, std::memory_order_relaxed);
  constexpr size_t kPage = 4096;
  char* const first_page = reinterpret_cast<char*>(header_) + kPage;
  for (TraceSlot* slot = slots_; reinterpret_cast<char*>(slot) < first_page; ++slot)
    for (auto& word : slot->words) word.store(0, std::memory_order_relaxed);
  if (path_.empty()) ::madvise(first_page, bytes_ - kPage, MADV_DONTNEED);
}

TraceSlot* TraceBuffer::Reserve(uint64_t slots) {
  uint64_t first = header_->used.load(std::memory_order_relaxed);
  do {
    if (first + slots > header_->slot_count) {
      header_->dropped.fetch_add(1, std::memory_order_relaxed);
      return nullptr;
    }
  } while (!header_->used.compare_exchange_weak(first, first + slots, std::memory_order_relaxed));
  return slots_ + first;
}

// A linear search is enough: threads are few, and the thread that marks gradients is usually first.
uint8_t TraceBuffer::ThreadNumber() {
  const auto self = static_cast<uint64_t>(::pthread_self());
  const uint32_t known = std::min(threads_.load(std::memory_order_relaxed), kMostThreads);
  for (uint32_t i = 0; i < known; ++i)
    if (thread_ids_[i].load(std::memory_order_relaxed) == self) return static_cast<uint8_t>(i);
  const uint32_t number = std::min(threads_.fetch_add(1), kMostThreads);
  if (number == kMostThreads) return static_cast<uint8_t>(number);
  thread_ids_[number].store(self, std::memory_order_relaxed);
  const std::string name = base::Text("thread ", ::gettid());
  std::vector<uint64_t> words(name.size() / sizeof(uint64_t) + 1);
  std::memcpy(words.data(), name.data(), name.size());
  Store(TraceType::kThread, number, static_cast<uint8_t>(number), words.data(), words.size());
  return static_cast<uint8_t>(number);
}

void TraceBuffer::AddMark(uint32_t reducer, uint32_t gradient, base::TimePoint now) {
  if (!on()) return;
  const uint8_t thread = ThreadNumber();
  TraceSlot* slot = Reserve(1);
  if (slot == nullptr) return;
  slot->words[1].store(TraceTime(now), std::memory_order_relaxed);
  const TraceHead head = {TraceType::kMark, thread, static_cast<uint16_t>(reducer), gradient};
  slot->words[0].store(head.Pack(), std::memory_order_release);
}

void TraceBuffer::Add(TraceType type, uint32_t id, std::initializer_list<uint64_t> words) {
  if (on()) Store(type, id, ThreadNumber(), words.begin(), words.size());
}

void TraceBuffer::AddText(
    TraceType type, uint32_t id, std::initializer_list<uint64_t> words, const std::string& text) {
  if (!on()) return;
  const size_t length = std::min(text.size(), kMostText);
  std::vector<uint64_t> all(words);
  all.resize(words.size() + length / sizeof(uint64_t) + 1);
  std::memcpy(all.data() + words.size(), text.data(), length);
  Store(type, id, ThreadNumber(), all.data(), all.size());
}

// The length of the record is stored before its words, with type kBegun. So a reader of the trace
// of a killed process can skip a record that is not complete.
void TraceBuffer::Store(
    TraceType type, uint32_t id, uint8_t thread, const uint64_t* words, size_t count) {
  const uint64_t slots = count / 2 + 1;
  TraceSlot* slot = Reserve(slots);
  if (slot == nullptr) return;
  TraceHead head = {TraceType::kBegun, thread, static_cast<uint16_t>(slots), id};
  slot->words[0].store(head.Pack(), std::memory_order_release);
  for (size_t i = 0; i < count; ++i)
    slot[(i + 1) / 2].words[(i + 1) % 2].store(words[i], std::memory_order_relaxed);
  head.type = type;
  slot->words[0].store(head.Pack(), std::memory_order_release);
}

}  // namespace dtrun::runtime
