#ifndef DTRUN_RUNTIME_TIMELINE_TRACE_BUFFER_H_
#define DTRUN_RUNTIME_TIMELINE_TRACE_BUFFER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "base/process.h"
#include "base/trace.h"

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

}  // namespace dtrun::runtime

#endif
