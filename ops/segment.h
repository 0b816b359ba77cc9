#ifndef DTRUN_OPS_SEGMENT_H_
#define DTRUN_OPS_SEGMENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

}  // namespace dtrun::ops

#endif
