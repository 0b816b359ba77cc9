#include "launcher/support/user_files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {

std::string ReadUserFile(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(base::Text(Excerpt(path), ": ", why));
  };
  struct File {
    int descriptor;
    ~File() { close(descriptor); }
  } file = {open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.descriptor < 0) refuse(std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = read(file.descriptor, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(std::strerror(errno));
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMaxBytes) refuse("larger than 64 MiB");
  }
}

ResultFile::ResultFile(const std::string& path)
    : path_(path), file_(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) {
  if (file_ < 0) Fail();
}

ResultFile::~ResultFile() {
  if (file_ >= 0) close(file_);
}

void ResultFile::Write(const std::string& text) {
  Add(text);
  Close();
}

void ResultFile::Add(const std::string& piece) {
  struct stat status = {};
  const bool regular = fstat(file_, &status) == 0 && S_ISREG(status.st_mode);
  if (!std::exchange(begun_, true) && regular && ftruncate(file_, 0) != 0) Fail();
  for (size_t written = 0; written < piece.size();) {
    const ssize_t result = write(file_, piece.data() + written, piece.size() - written);
    if (result < 0 && errno == EINTR) continue;
    if (result < 0) Fail();
    written += static_cast<size_t>(result);
  }
}

void ResultFile::Close() {
  // Some file systems report write errors only here.
  if (close(std::exchange(file_, -1)) != 0) Fail();
}

void ResultFile::Fail() const {
  throw LaunchError(
      ExitCode::kNoResult,
      base::Text("cannot write ", ShellQuoted(path_), ": ", std::strerror(errno)));
}

namespace {

[[noreturn]] void Fail(const std::string& path, const std::string& why) {
  throw LaunchError(ExitCode::kNoResult, base::Text("cannot write ", ShellQuoted(path), ": ", why));
}

bool WriteAll(int file, const std::string& text) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t result = write(file, text.data() + written, text.size() - written);
    if (result < 0 && errno == EINTR) continue;
    if (result < 0) return false;
    written += static_cast<size_t>(result);
  }
  return true;
}

}  // namespace

ReplacedFile::ReplacedFile(std::string path) : path_(std::move(path)) {
  struct stat status = {};
  if (stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    Fail(path_, "it exists and is not a regular file; expected a new or a regular file");
}

// Writes a file in the same folder first, because a rename needs the same file system.
void ReplacedFile::Replace(const std::string& text) const {
  std::string other = path_ + ".XXXXXX";
  const int file = mkostemp(other.data(), O_CLOEXEC);
  if (file < 0) Fail(path_, std::strerror(errno));
  bool good = WriteAll(file, text) && fchmod(file, 0644) == 0;
  int error = errno;
  if (close(file) != 0 && good) good = false, error = errno;
  if (good && std::rename(other.c_str(), path_.c_str()) == 0) return;
  if (good) error = errno;
  unlink(other.c_str());
  Fail(path_, std::strerror(error));
}

}  // namespace dtrun::launcher
