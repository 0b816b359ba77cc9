#include "tests/support/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace dtrun::testing {
namespace {

using Clock = std::chrono::steady_clock;

int OpenProcess(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

void Require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what + ": " + std::strerror(errno));
}

[[noreturn]] void Become(const Command& command, int out, int err) {
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal : {SIGINT, SIGQUIT, SIGHUP, SIGTERM, SIGPIPE}) ::signal(signal, SIG_DFL);
  dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  for (const auto& [name, value] : command.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& word : command.argv) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  if (command.folder.empty() || chdir(command.folder.c_str()) == 0) execvp(argv[0], argv.data());
  dprintf(STDERR_FILENO, "cannot run %s: %s\n", argv[0], std::strerror(errno));
  _exit(127);
}

}  // namespace

Subprocess::Subprocess(const Command& command) : deadline_(Clock::now() + command.timeout) {
  int out[2];
  int err[2];
  Require(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0, "pipe");
  pid_ = fork();
  Require(pid_ >= 0, "fork");
  if (pid_ == 0) Become(command, out[1], err[1]);
  setpgid(pid_, pid_);  // the child does it too
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
  for (int file : {out_, err_}) fcntl(file, F_SETFL, O_NONBLOCK);
  process_ = OpenProcess(pid_);
  Require(process_ >= 0, "pidfd_open");
}

Subprocess::~Subprocess() {
  kill(-pid_, SIGKILL);
  if (!reaped_) waitpid(pid_, nullptr, 0);
  for (int file : {process_, out_, err_})
    if (file >= 0) close(file);
}

void Subprocess::Signal(int signal) { kill(pid_, signal); }

void Subprocess::Drain(int& file, std::string& text) {
  char buffer[1 << 16];
  ssize_t got = -1;
  while (file >= 0 && (got = read(file, buffer, sizeof buffer)) > 0)
    text.append(buffer, static_cast<size_t>(got));
  if (file >= 0 && got == 0) {
    close(file);
    file = -1;
  }
}

// poll skips files that are -1. If a child of the program writes after the program's end, that
// output is not read.
Subprocess::Progress Subprocess::ReadSome() {
  pollfd ready[] = {{process_, POLLIN, 0}, {out_, POLLIN, 0}, {err_, POLLIN, 0}};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
  const int count = poll(ready, 3, static_cast<int>(std::max<int64_t>(left.count(), 0)));
  if (count == 0) return Progress::kTimeout;
  Drain(out_, result_.out);
  Drain(err_, result_.err);
  return ready[0].revents != 0 ? Progress::kEnded : Progress::kMore;
}

bool Subprocess::WaitForLines(int lines) {
  while (std::count(result_.out.begin(), result_.out.end(), '\n') < lines)
    if (ReadSome() != Progress::kMore) break;
  return std::count(result_.out.begin(), result_.out.end(), '\n') >= lines;
}

CommandResult Subprocess::Wait() {
  Progress progress = Progress::kMore;
  while (progress == Progress::kMore) progress = ReadSome();
  if (progress == Progress::kTimeout) {
    result_.timed_out = true;
    kill(-pid_, SIGKILL);
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  reaped_ = true;
  Drain(out_, result_.out);
  Drain(err_, result_.err);
  result_.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result_;
}

CommandResult Run(const Command& command) { return Subprocess(command).Wait(); }

ProcessWatch::ProcessWatch(pid_t pid) : process_(OpenProcess(pid)) {}

ProcessWatch::~ProcessWatch() {
  if (process_ >= 0) close(process_);
}

bool ProcessWatch::Ends(std::chrono::milliseconds timeout) const {
  pollfd ended = {process_, POLLIN, 0};
  return poll(&ended, 1, static_cast<int>(timeout.count())) == 1;
}

TemporaryFolder::TemporaryFolder() : path_("/tmp/dtrun_test.XXXXXX") {
  Require(mkdtemp(path_.data()) != nullptr, "mkdtemp");
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> TemporaryFolder::Entries() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string TemporaryFolder::Write(
    const std::string& name, const std::string& text, int mode) const {
  const std::string file = path_ + "/" + name;
  std::ofstream(file, std::ios::binary) << text;
  chmod(file.c_str(), static_cast<mode_t>(mode));
  return file;
}

}  // namespace dtrun::testing
