#include "ops/segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

std::shared_ptr<Segment> Segment::Create(uint64_t bytes) {
  FileDescriptor fd(::memfd_create("dtrun", MFD_CLOEXEC));
  if (fd.get() < 0) ThrowErrno("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    ThrowErrno(base::Text("ftruncate of shared memory to ", bytes, " bytes"));
  }
  return Map(std::move(fd), bytes);
}

std::shared_ptr<Segment> Segment::Map(FileDescriptor fd, uint64_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) ThrowErrno(base::Text("mmap of ", bytes, " bytes of shared memory"));
  // A child of a fork must not keep gradients alive, nor write into them.
  ::madvise(data, bytes, MADV_DONTFORK);
  return std::shared_ptr<Segment>(new Segment(std::move(fd), static_cast<char*>(data), bytes));
}

Segment::~Segment() { ::munmap(data_, bytes_); }

void ThrowErrno(const std::string& call) {
  throw Error(ErrorCode::kSystem, base::Text(call, " failed: ", std::strerror(errno)));
}

}  // namespace dtrun::ops
