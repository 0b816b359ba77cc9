#include "runtime/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

using base::Text;

std::string Holder(int file) {
  std::array<char, 300> text{};
  const ssize_t got = ::pread(file, text.data(), text.size() - 1, 0);
  // Between its lock and its line the other one has not said who it is.
  return got > 0 ? std::string(text.data()) : "another process";
}

std::string Self() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return Text("process ", ::getpid(), " on ", host.data());
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/.lock";
  file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (file_.number() < 0) throw Error(ErrorCode::kSystem, Reason("write", path, errno));
  while (::flock(file_.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) throw Error(ErrorCode::kSystem, Reason("lock", path, errno));
    throw Error(
        ErrorCode::kUnavailable,
        Text(
            "checkpoint folder '", folder, "' is in use: ", Holder(file_.number()),
            " saves there; expected a folder for each job"));
  }
  // On a full disk the lock holds all the same.
  const std::string self = Self();
  if (::ftruncate(file_.number(), 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(file_.number(), self.data(), self.size(), 0);
  }
}

}  // namespace dtrun::runtime
