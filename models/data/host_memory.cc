#include "models/data/host_memory.h"

#include <dtrun/error.h>
#include <dtrun/objects.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "models/message_text.h"

// The first rank writes the bytes to an anonymous memory file (memfd) and seals it. It sends the
// other ranks the file's address: process and file descriptor. All ranks open the file under /proc
// and map it. Then the first rank closes the file, so no other process can reach it. The kernel
// frees the memory with the last mapping. So a crash leaks no memory.

namespace dtrun::models {
namespace {

class OpenFile {
 public:
  explicit OpenFile(int fd = -1) : fd_(fd) {}
  OpenFile(OpenFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

// The address of a memory file. `device` and `inode` detect another file at the same address.
struct Address {
  int64_t process, fd;
  uint64_t device, inode, bytes;
};

using Parts = std::vector<std::span<const uint8_t>>;

[[noreturn]] void Fail(const char* what) {
  throw Error(
      ErrorCode::kSystem,
      Text("memory shared by the ranks of a host: ", what, ": ", std::strerror(errno)));
}

size_t SumOf(const Parts& parts) {
  size_t bytes = 0;
  for (const auto& part : parts) bytes += part.size();
  return bytes;
}

void WriteAll(int fd, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) Fail("cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

OpenFile MakeFile(const Parts& parts) {
  OpenFile file(memfd_create("dtrun-data", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.fd() < 0) Fail("cannot be made");
  for (const auto& part : parts) WriteAll(file.fd(), part);
  if (fcntl(file.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
    Fail("cannot be sealed");
  return file;
}

Address AddressOf(const OpenFile& file, size_t bytes) {
  struct stat status {};
  if (fstat(file.fd(), &status) != 0) Fail("cannot be examined");
  return {getpid(), file.fd(), status.st_dev, status.st_ino, bytes};
}

// Returns null if this rank cannot reach or map the file.
std::shared_ptr<const HostMemory> MapAt(const Address& address) {
  const std::string path = Text("/proc/", address.process, "/fd/", address.fd);
  const OpenFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (file.fd() < 0 || fstat(file.fd(), &status) != 0) return nullptr;
  if (status.st_dev != address.device || status.st_ino != address.inode) return nullptr;
  void* data = mmap(nullptr, address.bytes, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (data == MAP_FAILED) return nullptr;
  return std::make_shared<const HostMemory>(static_cast<const uint8_t*>(data), address.bytes);
}

// All ranks throw an error of the first rank.
template <typename Make>
std::vector<Address> FromFirst(Communicator& host, const Make& make) {
  std::vector<Address> address;
  std::string error;
  if (host.rank() == 0) {
    try {
      address.push_back(make());
    } catch (const Error& e) {
      error = e.what();
    }
  }
  error = BroadcastBytes(host, error);
  if (!error.empty()) throw Error(ErrorCode::kSystem, error);
  return BroadcastV(host, address);
}

}  // namespace

HostMemory::~HostMemory() { munmap(const_cast<uint8_t*>(data_), bytes_); }

std::shared_ptr<const HostMemory> HostMemory::Share(Communicator& host, const Parts& parts) {
  OpenFile file;
  const Address address = FromFirst(host, [&] {
    file = MakeFile(parts);
    return AddressOf(file, SumOf(parts));
  })[0];
  std::shared_ptr<const HostMemory> memory = MapAt(address);
  uint8_t all_have_it = memory != nullptr;
  host.AllReduce(Buffer(&all_have_it, 1), ReduceOp::kMin);
  return all_have_it != 0 ? memory : Copy(host, parts, address.bytes);
}

std::shared_ptr<const HostMemory> HostMemory::Copy(
    Communicator& host, const Parts& parts, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) Fail("cannot be allocated");
  auto* to = static_cast<uint8_t*>(data);
  auto memory = std::make_shared<const HostMemory>(to, bytes);
  size_t done = 0;
  for (const auto& part : host.rank() == 0 ? parts : Parts{}) {
    std::memcpy(to + done, part.data(), part.size());
    done += part.size();
  }
  host.Broadcast(Buffer(to, bytes), 0);
  return memory;
}

}  // namespace dtrun::models
