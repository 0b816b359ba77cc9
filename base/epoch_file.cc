// The epoch is a futex in the mapped file. Its texts are written before it, into one of two places
// that take turns, so a reader of the current epoch never sees a half-written text.

#include "base/epoch_file.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::base {

struct EpochFile::Content {
  static constexpr size_t kMostText = 255, kMostVariables = 65'535;

  std::atomic<uint32_t> epoch;
  char why[2][kMostText + 1];
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

void EpochFile::Publish(uint32_t epoch, const std::string& why, const std::string& variables) {
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
  put(content_->why[epoch % 2], why, Content::kMostText);
  put(content_->variables[epoch % 2], variables, Content::kMostVariables);
  content_->epoch.store(epoch, std::memory_order_release);
  Wake();
}

void EpochFile::Wake() const {
  ::syscall(SYS_futex, &content_->epoch, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint32_t EpochFile::epoch() const { return content_->epoch.load(std::memory_order_acquire); }

std::string EpochFile::WhyEpoch(uint32_t epoch) const {
  const char* const place = content_->why[epoch % 2];
  return {place, ::strnlen(place, Content::kMostText)};
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

}  // namespace dtrun::base
