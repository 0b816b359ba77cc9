#ifndef DTRUN_OPS_BOOTSTRAP_SEGMENT_H_
#define DTRUN_OPS_BOOTSTRAP_SEGMENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"

namespace dtrun::ops {

/// An open file descriptor, closed with the object.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }

 private:
  int fd_;
};

/// Zeroed memory that other processes of this host can map. It is a memfd: a crash leaves no file
/// behind, and the size of /dev/shm does not matter. A forked child does not inherit the mapping.
/// Aligned to a page, or to a huge page from 2 MiB on. Immutable except for the bytes.
class Segment {
 public:
  /// Creates a segment. `bytes` > 0. Throws Error kSystem.
  static std::shared_ptr<Segment> Create(uint64_t bytes);
  /// Maps a segment that another process created. Throws Error kSystem.
  static std::shared_ptr<Segment> Map(FileDescriptor fd, uint64_t bytes);
  /// Allocates part `part` of `parts` equal parts at once, for memory that will all be used. The
  /// pages lie near the calling thread, and are huge pages if the kernel can collapse them. Only
  /// advice: other pages are allocated when they are touched.
  void Populate(int part, int parts);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  Segment(FileDescriptor fd, char* data, uint64_t bytes)
      : fd_(std::move(fd)), data_(data), bytes_(bytes) {}

  FileDescriptor fd_;
  char* data_;
  uint64_t bytes_;
};

/// Throws Error kSystem: "<call> failed: <strerror(errno)>".
[[noreturn]] void ThrowErrno(const std::string& call);

/// Wakes the threads of one rank from any process that maps the doorbell. A rank has one doorbell
/// for all its waits. A doorbell lies in shared memory and is valid when zeroed.
///
///   the sleeper:  ticket = bell.Prepare();  look for work;
///                 if there is none, bell.Sleep(ticket, timeout);
///   a peer:       publish the work;  bell.Ring();
///
/// While no thread sleeps, Ring costs a fence and a load. A ring between Prepare and Sleep is not
/// lost: Sleep returns at once.
class Doorbell {
 public:
  /// Announces a sleeper. Each Prepare is followed by one Sleep or one Cancel.
  uint32_t Prepare() {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    return rings_.load(std::memory_order_seq_cst);
  }
  void Cancel() { sleepers_.fetch_sub(1, std::memory_order_relaxed); }
  /// Returns after a ring since Prepare, after `timeout`, or spuriously.
  void Sleep(uint32_t ticket, base::Duration timeout);

  void Ring() {
    // Orders the published work before the look at the sleepers. Pairs with the fetch_add of
    // Prepare.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_relaxed) != 0) Wake();
  }

 private:
  void Wake();

  std::atomic<uint32_t> rings_;
  std::atomic<uint32_t> sleepers_;
};

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_BOOTSTRAP_SEGMENT_H_
