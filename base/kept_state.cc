// The file holds a header, the name and the state. A new state is written to a file beside it, and
// the two files exchange their names: the file with the state before is the one that the next call
// overwrites, so that the memory of both is used again.

#include "base/kept_state.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::base {
namespace {

constexpr char kMagic[] = "dtrunks1";  // with the version of the format

struct Header {
  char magic[8];
  uint64_t step, name_bytes, state_bytes;
};

class File {
 public:
  File(const std::string& path, int flags)
      : descriptor_(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

// Returns false at an error, which is in errno.
bool WriteAll(int file, std::vector<iovec> parts) {
  size_t first = 0;
  while (first < parts.size()) {
    const ssize_t wrote =
        writev(file, parts.data() + first, static_cast<int>(parts.size() - first));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    auto rest = static_cast<size_t>(wrote);
    for (; first < parts.size() && rest >= parts[first].iov_len; ++first)
      rest -= parts[first].iov_len;
    if (first == parts.size()) break;
    parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + rest;
    parts[first].iov_len -= rest;
  }
  return true;
}

bool ReadAll(int file, void* bytes, size_t count) {
  auto* to = static_cast<char*>(bytes);
  while (count > 0) {
    const ssize_t got = read(file, to, count);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    count -= static_cast<size_t>(got);
  }
  return true;
}

// The header of a whole file.
std::optional<Header> ReadHeader(int file) {
  Header header;
  struct stat status;
  const bool is_whole = file >= 0 && fstat(file, &status) == 0 &&
                        ReadAll(file, &header, sizeof header) &&
                        std::memcmp(header.magic, kMagic, sizeof header.magic) == 0 &&
                        sizeof header + header.name_bytes + header.state_bytes ==
                            static_cast<uint64_t>(status.st_size);
  return is_whole ? std::optional(header) : std::nullopt;
}

[[noreturn]] void Fail(const std::string& path, int error) {
  throw Error(
      ErrorCode::kSystem,
      Text("cannot keep the state of the training in ", path, ": ", std::strerror(error)));
}

}  // namespace

void WriteKeptState(
    const std::string& path, const std::string& name, uint64_t step, const void* bytes,
    size_t count) {
  const std::string other = path + ".next";
  const File file(other, O_WRONLY | O_CREAT);
  if (file.descriptor() < 0) Fail(path, errno);
  Header header = {{}, step, name.size(), count};
  std::memcpy(header.magic, kMagic, sizeof header.magic);
  const auto part = [](const void* data, size_t size) {
    return iovec{const_cast<void*>(data), size};
  };
  const bool is_written =
      WriteAll(
          file.descriptor(),
          {part(&header, sizeof header), part(name.data(), name.size()), part(bytes, count)}) &&
      ftruncate(file.descriptor(), static_cast<off_t>(sizeof header + name.size() + count)) == 0;
  if (!is_written) {
    const int error = errno;
    unlink(other.c_str());
    Fail(path, error);
  }
  const bool has_names =
      renameat2(AT_FDCWD, other.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0 ||
      std::rename(other.c_str(), path.c_str()) == 0;
  if (!has_names) Fail(path, errno);
}

std::optional<KeptState> ReadKeptState(const std::string& path) {
  const File file(path, O_RDONLY);
  const std::optional<Header> header = ReadHeader(file.descriptor());
  if (!header) return std::nullopt;
  KeptState kept{std::string(header->name_bytes, '\0'), header->step, {}};
  kept.bytes.resize(header->state_bytes);
  const bool is_read = ReadAll(file.descriptor(), kept.name.data(), kept.name.size()) &&
                       ReadAll(file.descriptor(), kept.bytes.data(), kept.bytes.size());
  return is_read ? std::optional(std::move(kept)) : std::nullopt;
}

std::optional<uint64_t> ReadKeptStep(const std::string& path) {
  const File file(path, O_RDONLY);
  const std::optional<Header> header = ReadHeader(file.descriptor());
  return header ? std::optional(header->step) : std::nullopt;
}

}  // namespace dtrun::base
