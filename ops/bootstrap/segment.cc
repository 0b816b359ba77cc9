#include "ops/bootstrap/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
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

namespace {

constexpr uint64_t kHugePage = 2 << 20;

// Maps the file at an address that suits huge pages. On failure returns MAP_FAILED and sets errno.
void* MapAligned(int fd, uint64_t bytes) {
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  if (bytes < kHugePage) return ::mmap(nullptr, bytes, kAccess, MAP_SHARED, fd, 0);
  // Reserves more room than needed, and returns the rest.
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t whole = (bytes + page - 1) / page * page, room = whole + kHugePage;
  void* reserved = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  char* const begin = static_cast<char*>(reserved);
  const uint64_t gap = -reinterpret_cast<uintptr_t>(begin) % kHugePage;
  void* data = ::mmap(begin + gap, whole, kAccess, MAP_SHARED | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    ::munmap(reserved, room);
    errno = error;
    return MAP_FAILED;
  }
  if (gap > 0) ::munmap(begin, gap);
  ::munmap(begin + gap + whole, kHugePage - gap);
  return data;
}

}  // namespace

std::shared_ptr<Segment> Segment::Create(uint64_t bytes) {
  FileDescriptor fd(::memfd_create("dtrun", MFD_CLOEXEC));
  if (fd.get() < 0) ThrowErrno("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    ThrowErrno(base::Text("ftruncate of shared memory to ", bytes, " bytes"));
  }
  return Map(std::move(fd), bytes);
}

std::shared_ptr<Segment> Segment::Map(FileDescriptor fd, uint64_t bytes) {
  void* data = MapAligned(fd.get(), bytes);
  if (data == MAP_FAILED) ThrowErrno(base::Text("mmap of ", bytes, " bytes of shared memory"));
  // A forked child must neither keep gradients alive nor write into them.
  ::madvise(data, bytes, MADV_DONTFORK);
  return std::shared_ptr<Segment>(new Segment(std::move(fd), static_cast<char*>(data), bytes));
}

// With small pages, long walks over memory lose up to a third of their time in page tables. Shared
// memory gets huge pages only if the kernel collapses existing pages (Linux 6.1 and later). So
// Populate first allocates all pages, which also avoids page faults later.
void Segment::Populate(int part, int parts) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack
  const uint64_t pages = bytes_ / kHugePage;
  const auto begin_of = [&](int i) {
    return pages * static_cast<uint64_t>(i) / static_cast<uint64_t>(parts) * kHugePage;
  };
  const uint64_t begin = begin_of(part), bytes = begin_of(part + 1) - begin;
  if (bytes > 0 &&
      ::fallocate(fd_.get(), 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)) == 0)
    ::madvise(data_ + begin, bytes, kCollapse);
}

Segment::~Segment() { ::munmap(data_, bytes_); }

void ThrowErrno(const std::string& call) {
  throw Error(ErrorCode::kSystem, base::Text(call, " failed: ", std::strerror(errno)));
}

namespace {

// The C library has no wrapper for futex calls. Not FUTEX_PRIVATE: processes share the word.
long Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return ::syscall(
      SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void Doorbell::Sleep(uint32_t ticket, base::Duration timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec relative{seconds.count(), (timeout - seconds).count()};
  if (timeout > base::Duration::zero()) Futex(rings_, FUTEX_WAIT, ticket, &relative);
  Cancel();
}

void Doorbell::Wake() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  Futex(rings_, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace dtrun::ops
