#include "launcher/result_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {

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
  // Some file systems tell only now.
  if (close(std::exchange(file_, -1)) != 0) Fail();
}

void ResultFile::Fail() const {
  throw LaunchError(
      ExitCode::kNoResult,
      base::Text("cannot write ", ShellQuoted(path_), ": ", std::strerror(errno)));
}

}  // namespace dtrun::launcher
