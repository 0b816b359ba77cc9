#include "models/formats/whole_file.h"

#include <dtrun/error.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "models/message_text.h"

namespace dtrun::models {
namespace {

[[noreturn]] void Fail(const std::string& path, const char* what, int error) {
  throw Error(
      ErrorCode::kSystem, Text(path, ": ", what, ": ", std::generic_category().message(error)));
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : file_(open(path.c_str(), flags, 0666)) {}
  ~Descriptor() {
    if (file_ >= 0) close(file_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

bool WriteAll(int file, const std::string& content) {
  for (size_t done = 0; done < content.size();) {
    const ssize_t wrote = write(file, content.data() + done, content.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    done += static_cast<size_t>(wrote);
  }
  return fsync(file) == 0;
}

// Deletes the file, unless Keep was called.
class Temporary {
 public:
  explicit Temporary(const std::string& path) : path_(path) {}
  ~Temporary() {
    if (!path_.empty()) unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const std::string& path() const { return path_; }
  void Keep() { path_.clear(); }

 private:
  std::string path_;
};

std::string NewNameBeside(const std::string& path) {
  static std::atomic<int> made = 0;
  return Text(path, ".", getpid(), ".", made++, ".tmp");
}

}  // namespace

std::string ReadFile(const std::string& path, size_t most_bytes) {
  const Descriptor file(path, O_RDONLY | O_CLOEXEC);
  if (file.get() < 0) Fail(path, "cannot be opened", errno);
  std::string content;
  char piece[1 << 16];
  while (true) {
    const ssize_t got = read(file.get(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Fail(path, "cannot be read", errno);
    if (got == 0) return content;
    content.append(piece, static_cast<size_t>(got));
    if (content.size() > most_bytes) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(path, ": more than ", most_bytes, " bytes, expected fewer"));
    }
  }
}

// The folder is flushed too, because it holds the new name.
void ReplaceFile(const std::string& path, const std::string& content) {
  Temporary temporary(NewNameBeside(path));
  {
    const Descriptor file(temporary.path(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC);
    if (file.get() < 0 || !WriteAll(file.get(), content)) Fail(path, "cannot be written", errno);
  }
  if (rename(temporary.path().c_str(), path.c_str()) != 0) Fail(path, "cannot be written", errno);
  temporary.Keep();
  const std::string folder = std::filesystem::path(path).parent_path();
  const Descriptor parent(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent.get() < 0 || fsync(parent.get()) != 0) Fail(path, "cannot be written", errno);
}

}  // namespace dtrun::models
