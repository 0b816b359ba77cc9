#include "runtime/tensor_file/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

using base::Text;

constexpr uint64_t kMostAtOnce = 1 << 30;  // a call transfers at most 2 GiB

[[noreturn]] void Throw(const char* what, const std::string& path, int error_number) {
  throw Error(ErrorCode::kSystem, Reason(what, path, error_number));
}

const char* NameOfKind(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

std::string Reason(const char* what, const std::string& path, int error_number) {
  return Text("cannot ", what, " '", path, "': ", std::strerror(error_number));
}

void Descriptor::Reset() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

OutputFile::OutputFile(const std::string& path)
    : path_(path),
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644)) {
  if (file_.number() < 0) Fail();
}

void OutputFile::Fail() const { Throw("write", path_, errno); }

void OutputFile::Write(const void* data, uint64_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(file_.number(), next, std::min(bytes, kMostAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) Fail();
    next += written;
    bytes -= static_cast<uint64_t>(written);
  }
}

void OutputFile::WriteAt(uint64_t offset, const void* data, uint64_t bytes) {
  if (::lseek(file_.number(), static_cast<off_t>(offset), SEEK_SET) < 0) Fail();
  Write(data, bytes);
}

void OutputFile::Finish() {
  if (::fsync(file_.number()) != 0) Fail();
  if (::close(file_.Release()) != 0) Fail();
}

FileBytes ReadWhole(const std::string& path, Links links) {
  const int no_follow = links == Links::kRefuse ? O_NOFOLLOW : 0;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | no_follow));
  if (file.number() < 0 && errno == ELOOP && links == Links::kRefuse)
    throw Error(
        ErrorCode::kInvalidArgument, Text("'", path, "' is a symbolic link; expected a file"));
  struct stat facts {};
  if (file.number() < 0 || ::fstat(file.number(), &facts) != 0) Throw("read", path, errno);
  if (!S_ISREG(facts.st_mode))
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("'", path, "' is ", NameOfKind(facts.st_mode), "; expected a file"));
  const auto size = static_cast<uint64_t>(facts.st_size);
  FileBytes bytes{std::unique_ptr<char[]>(new char[size]), 0};
  while (bytes.size < size) {
    const ssize_t got = ::read(
        file.number(), bytes.data.get() + bytes.size, std::min(size - bytes.size, kMostAtOnce));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Throw("read", path, errno);
    if (got == 0) break;  // the file has become shorter meanwhile
    bytes.size += static_cast<uint64_t>(got);
  }
  return bytes;
}

void SyncFolder(const std::string& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: some network file systems cannot flush a folder.
  if (folder.number() < 0 || (::fsync(folder.number()) != 0 && errno != EINVAL))
    Throw("write", path, errno);
}

void Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) Throw("write", to, errno);
}

bool Exchange(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) Throw("write", to, errno);
  return false;
}

void MakeFolders(const std::string& path) {
  std::error_code ignored;
  if (path.empty() || std::filesystem::is_directory(path, ignored)) return;
  const std::string parent = std::filesystem::path(path).parent_path();
  MakeFolders(parent);
  // The parent of "a/b/" is "a/b", so the folder may exist by now.
  if (::mkdir(path.c_str(), 0755) != 0 && !std::filesystem::is_directory(path, ignored))
    Throw("make the folder", path, errno);
  SyncFolder(parent.empty() ? "." : parent);
}

void MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) != 0) Throw("make the folder", path, errno);
}

bool PlaceLink(const std::string& target, const std::string& path, const std::string& temporary) {
  if (::symlink(target.c_str(), temporary.c_str()) != 0) return false;
  if (::rename(temporary.c_str(), path.c_str()) == 0) return true;
  ::unlink(temporary.c_str());
  return false;
}

PathKind KindOf(const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0) return PathKind::kNone;
  if (S_ISDIR(facts.st_mode)) return PathKind::kFolder;
  if (S_ISREG(facts.st_mode)) return PathKind::kFile;
  return S_ISLNK(facts.st_mode) ? PathKind::kLink : PathKind::kOther;
}

}  // namespace dtrun::runtime
