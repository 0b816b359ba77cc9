#include "launcher/replaced_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
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
    Fail(path_, "it is no regular file, and would be replaced by one");
}

// Beside it, for a rename stays within a file system.
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
