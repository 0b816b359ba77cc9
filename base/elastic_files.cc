// The epoch is a futex in the mapped file. Its texts are written before it, into one of two places
// that take turns, so a reader of the current epoch never sees a half-written text.
//
// The file of a kept state holds a header, the name and the state. A new state is written to a file
// beside it, and the two files exchange their names: the file with the state before is the one that
// the next call overwrites, so that the memory of both is used again.

#include "base/elastic_files.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::base {

// ---- Epochs -------------------------------------------------------------------------------------

struct EpochFile::Content {
  static constexpr size_t kMostText = 255, kMostLost = 64, kMostVariables = 65'535;

  std::atomic<uint32_t> epoch;
  char why[2][kMostText + 1];
  uint32_t lost_count[2];
  int32_t lost[2][kMostLost];
  char variables[2][kMostVariables + 1];
};

namespace {

[[noreturn]] void Fail(const std::string& path, const char* what) {
  throw Error(
      ErrorCode::kSystem,
      Text("the file of epochs ", path, ": ", what, ": ", std::strerror(errno)));
}

void* Map(const std::string& path, int flags, int protection, size_t bytes) {
  const int file = ::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) Fail(path, "open");
  const bool sized = (flags & O_CREAT) == 0 || ::ftruncate(file, static_cast<off_t>(bytes)) == 0;
  void* const data = sized ? ::mmap(nullptr, bytes, protection, MAP_SHARED, file, 0) : MAP_FAILED;
  const int error = errno;
  ::close(file);
  errno = error;
  if (data == MAP_FAILED) Fail(path, sized ? "mmap" : "ftruncate");
  return data;
}

}  // namespace

std::unique_ptr<EpochFile> EpochFile::Create(const std::string& path) {
  void* const data = Map(path, O_RDWR | O_CREAT | O_EXCL, PROT_READ | PROT_WRITE, sizeof(Content));
  return std::unique_ptr<EpochFile>(new EpochFile(static_cast<Content*>(data)));
}

std::unique_ptr<EpochFile> EpochFile::Open(const std::string& path) {
  return std::unique_ptr<EpochFile>(
      new EpochFile(static_cast<Content*>(Map(path, O_RDONLY, PROT_READ, sizeof(Content)))));
}

EpochFile::~EpochFile() { ::munmap(content_, sizeof(Content)); }

void EpochFile::Publish(uint32_t epoch, const EpochCause& why, const std::string& variables) {
  if (variables.size() > Content::kMostVariables)
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "the variables of an epoch have ", variables.size(),
                                         " bytes; expected at most ", Content::kMostVariables));
  const auto put = [](char* place, const std::string& text, size_t most) {
    const size_t length = std::min(text.size(), most);
    std::memcpy(place, text.data(), length);
    place[length] = '\0';
  };
  put(content_->why[epoch % 2], why.text, Content::kMostText);
  const size_t lost = std::min(why.lost.size(), Content::kMostLost);
  std::copy_n(why.lost.begin(), lost, content_->lost[epoch % 2]);
  content_->lost_count[epoch % 2] = static_cast<uint32_t>(lost);
  put(content_->variables[epoch % 2], variables, Content::kMostVariables);
  content_->epoch.store(epoch, std::memory_order_release);
  Wake();
}

void EpochFile::Wake() const {
  ::syscall(SYS_futex, &content_->epoch, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint32_t EpochFile::epoch() const { return content_->epoch.load(std::memory_order_acquire); }

EpochCause EpochFile::WhyEpoch(uint32_t epoch) const {
  const char* const text = content_->why[epoch % 2];
  const int32_t* const lost = content_->lost[epoch % 2];
  const size_t count = std::min<size_t>(content_->lost_count[epoch % 2], Content::kMostLost);
  return {std::string(text, ::strnlen(text, Content::kMostText)), {lost, lost + count}};
}

std::string EpochFile::VariablesOf(uint32_t epoch) const {
  const char* const place = content_->variables[epoch % 2];
  return {place, ::strnlen(place, Content::kMostVariables)};
}

bool EpochFile::AwaitAfter(
    uint32_t seen, std::chrono::milliseconds longest, const std::atomic<bool>* stop) const {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + longest;
  for (;;) {
    const uint32_t now = epoch();
    if (now > seen) return true;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0 || (stop != nullptr && *stop)) return false;
    const timespec wait = {left / 1000, left % 1000 * 1'000'000};
    ::syscall(SYS_futex, &content_->epoch, FUTEX_WAIT, now, &wait, nullptr, 0);
  }
}

// ---- The kept state -----------------------------------------------------------------------------

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

[[noreturn]] void FailToKeep(const std::string& path, int error) {
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
  if (file.descriptor() < 0) FailToKeep(path, errno);
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
    FailToKeep(path, error);
  }
  const bool has_names =
      renameat2(AT_FDCWD, other.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0 ||
      std::rename(other.c_str(), path.c_str()) == 0;
  if (!has_names) FailToKeep(path, errno);
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
