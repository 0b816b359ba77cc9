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

/// Zeroed memory that other processes of this host can map, backed by a memfd: nothing is left
/// behind by a crash, and the size of /dev/shm does not matter. It is not inherited by a fork.
/// Aligned to a page, from 2 MiB on to a huge one. Immutable but for the bytes.
class Segment {
 public:
  /// A new one. Throws Error kSystem. `bytes` > 0.
  static std::shared_ptr<Segment> Create(uint64_t bytes);
  /// One that another process created.
  static std::shared_ptr<Segment> Map(FileDescriptor fd, uint64_t bytes);
  /// Memory that will all be used: takes part `part` of `parts` even ones at once, near the thread
  /// that calls, and in huge pages where the kernel can. Only advice: what it does not take comes
  /// when touched.
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

/// Wakes the threads of one rank, from any process that maps it: one wait point for everything a
/// rank can wait for. It lies in shared memory and is valid when zeroed.
///
///   the sleeper:  ticket = bell.Prepare();  look whether there is work;  if not,
///   bell.Sleep(ticket, deadline); a peer:       publish the work;  bell.Ring();
///
/// Ring costs a fence and a load while nobody sleeps. A ring between Prepare and Sleep is not lost:
/// Sleep returns at once.
class Doorbell {
 public:
  /// Announces a sleeper. Every Prepare is followed by one Sleep or Cancel.
  uint32_t Prepare() {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    return rings_.load(std::memory_order_seq_cst);
  }
  void Cancel() { sleepers_.fetch_sub(1, std::memory_order_relaxed); }
  /// Returns after a ring since Prepare, after `timeout`, or for no reason.
  void Sleep(uint32_t ticket, base::Duration timeout);

  void Ring() {
    // Orders what was published before the look at the sleepers; pairs with the fetch_add of
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
