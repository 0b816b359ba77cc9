// The keeper reads a pipe with dtrun as the only writer. Each value it reads is the process that
// uses the folder now. When dtrun ends for any reason, the pipe ends. The keeper then waits for the
// user process (which it kills after kGraceMs) and removes the folder. dtrun and the keeper share a
// lock on a file in the folder. If both are killed, the user's next job finds the lock free and
// removes the folder.

#include "launcher/protocol/job_folder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr int kGraceMs = 10'000;

[[noreturn]] void FailOnFile(const std::string& what, ExitCode code = ExitCode::kInternal) {
  throw LaunchError(code, what + ErrorWithLimit(errno));
}

// `user` is not a child of the keeper, so the keeper waits through a pidfd.
void WaitUntilGone(pid_t user) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, user, 0));
  if (process < 0) return;
  pollfd ended = {process, POLLIN, 0};
  if (poll(&ended, 1, kGraceMs) == 0) {
    kill(user, SIGKILL);
    poll(&ended, 1, kGraceMs);
  }
}

void RemoveFolders(const std::string& folder) {
  std::error_code ignored;
  for (const std::string& path : {folder, MemoryFolder(folder)})
    std::filesystem::remove_all(path, ignored);
}

std::string LockFile(const std::string& folder) { return folder + "/lock"; }

// Locks the file before it gets its name, so other jobs never find it unlocked. -1: the lock
// failed. The folder then stays if the keeper is killed.
int Lock(const std::string& folder) {
  const std::string made = LockFile(folder) + ".new";
  const int file = open(made.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return -1;
  if (flock(file, LOCK_EX | LOCK_NB) == 0 && rename(made.c_str(), LockFile(folder).c_str()) == 0)
    return file;
  close(file);
  return -1;
}

bool IsOwnFolder(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

bool IsStale(const std::string& folder) {
  if (!IsOwnFolder(folder)) return false;
  const int file = open(LockFile(folder).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return false;
  const bool free = flock(file, LOCK_EX | LOCK_NB) == 0;
  close(file);
  return free;
}

constexpr char kKeptState[] = "kept_state";  // and the file that the next state is written to

constexpr uint64_t kRoomBytes = 256 * 1024, kRoomFiles = 32;

// How far `base` is short of room; "": it has enough. Open MPI crashes without room for its files.
// Some file systems report no number of files.
std::string WhatLacks(const std::string& base) {
  struct statvfs system = {};
  if (statvfs(base.c_str(), &system) != 0 || system.f_blocks == 0) return "";
  const bool root = geteuid() == 0;
  const uint64_t bytes = (root ? system.f_bfree : system.f_bavail) * system.f_frsize;
  const uint64_t files = root ? system.f_ffree : system.f_favail;
  if (bytes < kRoomBytes)
    return Text(bytes / 1024, " KiB are free; expected ", kRoomBytes / 1024, " KiB");
  if (system.f_files > 0 && files < kRoomFiles)
    return Text(files, " files can be made, then it has no inodes left; expected ", kRoomFiles);
  return "";
}

void CheckRoom(const std::string& base) {
  const std::string lacks = WhatLacks(base);
  if (!lacks.empty())
    throw LaunchError(
        ExitCode::kUnavailable, Text(
                                    "cannot make a folder for the job in ", base,
                                    " (TMPDIR chooses another place): ", lacks));
}

void RemoveStaleFolders(const std::string& base) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(base, error)) {
    const std::string path = base + "/" + entry.path().filename().string();
    if (path.starts_with(JobFolder::PathOf(base, "")) && IsStale(path)) RemoveFolders(path);
  }
}

// Reads the user processes from the pipe until the owner ends, and returns the last one. An owner
// on another host is continued if it is stopped: no other process there would do so.
pid_t LastUser(int pipe, bool continues_owner) {
  StoppedHelper owner;
  pid_t user = 0;
  for (;;) {
    pollfd ready = {pipe, POLLIN, 0};
    if (continues_owner && poll(&ready, 1, 1000) == 0) {
      owner.Look(getppid());
      continue;
    }
    const ssize_t got = read(pipe, &user, sizeof user);
    if (got == 0 || (got < 0 && errno != EINTR)) return user;
  }
}

[[noreturn]] void Keep(const std::string& folder, int pipe, bool continues_owner) {
  prctl(PR_SET_NAME, "dtrun-keeper");
  setsid();  // the keeper gets no Ctrl-C from the terminal
  // Service managers and schedulers send these signals to every process of a job.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    ::signal(signal, SIG_IGN);
  const int null = open("/dev/null", O_RDWR);
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, stream);
  close(null);
  if (const pid_t user = LastUser(pipe, continues_owner); user > 0) WaitUntilGone(user);
  close(pipe);  // frees a descriptor: removal opens one per folder level
  RemoveFolders(folder);
  _exit(0);
}

}  // namespace

std::string FolderBase() {
  const std::string base = base::ProcessEnv("TMPDIR").value_or("");
  return base.empty() ? "/tmp" : base;
}

std::string JobFolder::Pattern(const std::string& base) { return PathOf(base, "XXXXXX"); }

std::string JobFolder::PathOf(const std::string& base, const std::string& name) {
  return Text(base, "/dtrun.", name);
}

JobFolder::JobFolder(const std::string& base, const std::string& name) : path_(PathOf(base, name)) {
  RemoveStaleFolders(base);
  CheckRoom(base);
  // If two hosts of the job are one machine, the other agent has already made that folder.
  if (name.empty() || mkdir(path_.c_str(), 0700) != 0) MakeByChance(base);
  lock_ = Lock(path_);
  mkdir(MemoryFolder(path_).c_str(), 0700);
  mkdir(FlightFolder(path_).c_str(), 0700);
  int ends[2];
  keeper_ = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
  if (keeper_ < 0) {
    const int error = errno;
    // rmdir needs no descriptor. Listing the folders would need one, and none may be left.
    unlink(LockFile(path_).c_str());
    for (const std::string& empty : {FlightFolder(path_), MemoryFolder(path_), path_})
      rmdir(empty.c_str());
    errno = error;
    FailOnFile("cannot start a process");
  }
  if (keeper_ == 0) {
    close(ends[1]);
    Keep(path_, ends[0], !name.empty());
  }
  close(ends[0]);
  pipe_ = ends[1];
}

// If the keeper was killed or is stopped, this process removes the folders.
JobFolder::~JobFolder() {
  close(pipe_);
  AwaitChild(keeper_, std::chrono::seconds(5));
  RemoveFolders(path_);
  if (lock_ >= 0) close(lock_);
}

void JobFolder::MakeByChance(const std::string& base) {
  path_ = Pattern(base);
  if (mkdtemp(path_.data()) == nullptr)
    FailOnFile(
        Text("cannot make a folder for the job in ", base, " (TMPDIR chooses another place)"),
        ExitCode::kUnavailable);
}

void JobFolder::SetUser(pid_t user) {
  [[maybe_unused]] const ssize_t written = write(pipe_, &user, sizeof user);
}

std::string MemoryFolder(const std::string& path) {
  return "/dev/shm" + path.substr(path.rfind('/'));
}

std::string KeptStateFile(const std::string& path) {
  return IsOwnFolder(MemoryFolder(path)) ? MemoryFolder(path) + "/" + kKeptState : "";
}

void ClearMemoryFolder(const std::string& path) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(MemoryFolder(path), ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kKeptState) && entry.path() != FlightFolder(path))
      std::filesystem::remove_all(entry.path(), ignored);
  }
}

// mpirun makes a folder "ompi.HOST.USER".
void ClearAfterEngine(const std::string& path) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored))
    if (entry.path().filename().string().starts_with("ompi."))
      std::filesystem::remove_all(entry.path(), ignored);
}

std::string SecretFile(const std::string& path) { return path + "/secret"; }

// If several hosts are one machine, their agents share the folder and write the same secret.
void WriteSecret(const std::string& path, const std::string& secret) {
  const std::string written = Text(SecretFile(path), '.', getpid());
  const int file =
      open(written.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) FailOnFile("cannot write the job's secret to " + written);
  const bool whole =
      write(file, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size());
  close(file);
  if (!whole || rename(written.c_str(), SecretFile(path).c_str()) != 0)
    FailOnFile("cannot write the job's secret to " + SecretFile(path));
}

std::string FlightFolder(const std::string& path) {
  const std::string memory = MemoryFolder(path);
  return (IsOwnFolder(memory) ? memory : path) + "/flight";
}

}  // namespace dtrun::launcher
