#include "launcher/support/host_system.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/text.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {

// A stream would throw if a read fails.
std::optional<std::string> ReadFileOfSystem(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string text;
  char bytes[4096];
  ssize_t got = 0;
  do {
    got = read(file, bytes, sizeof bytes);
    if (got > 0) text.append(bytes, static_cast<size_t>(got));
  } while (got > 0 || (got < 0 && errno == EINTR));
  close(file);
  return got < 0 ? std::nullopt : std::optional(std::move(text));
}

namespace {

using base::Text;

}  // namespace

// The format is "PID (NAME) STATE PARENT ...". NAME may contain any character.
std::optional<ProcessView> ViewProcess(pid_t process) {
  const std::string stat = ReadFileOfSystem(Text("/proc/", process, "/stat")).value_or("");
  const size_t name_end = stat.rfind(')');
  if (process <= 0 || name_end == std::string::npos || stat.size() < name_end + 4)
    return std::nullopt;
  const std::string state = stat.substr(name_end + 2);
  constexpr size_t kState = 3, kParent = 4, kStart = 22;  // numbered from one, as in proc(5)
  const std::vector<std::string> fields = base::Split(state, ' ');
  if (fields.size() <= kStart - kState) return std::nullopt;
  const auto number = [&](size_t field) {
    return base::ParseInteger(fields[field - kState]).value_or(-1);
  };
  return ProcessView{
      state[0], static_cast<pid_t>(number(kParent)), static_cast<uint64_t>(number(kStart))};
}

std::vector<pid_t> DescendantsOf(pid_t process) {
  std::vector<pid_t> found = {process};
  for (size_t i = 0; i < found.size(); ++i) {
    std::error_code error;
    std::filesystem::directory_iterator task(Text("/proc/", found[i], "/task"), error), none;
    for (; !error && task != none; task.increment(error)) {
      std::istringstream children(ReadFileOfSystem(task->path() / "children").value_or(""));
      for (pid_t child; children >> child;) found.push_back(child);
    }
  }
  found.erase(found.begin());
  return found;
}

bool StoppedHelper::Look(pid_t process) {
  const std::optional<ProcessView> view = ViewProcess(process);
  const auto now = std::chrono::steady_clock::now();
  if (!view || view->state != 'T') since_ = {};
  if (!view || view->state != 'T') return false;
  if (since_ == std::chrono::steady_clock::time_point()) since_ = now;
  if (now - since_ < kPatience) return false;
  since_ = {};
  return kill(process, SIGCONT) == 0;
}

void AwaitChild(pid_t child, std::chrono::milliseconds patience) {
  if (child <= 0) return;
  kill(child, SIGCONT);
  const int ended = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  pollfd wait = {ended, POLLIN, 0};
  if (ended < 0 || poll(&wait, 1, static_cast<int>(patience.count())) <= 0) kill(child, SIGKILL);
  if (ended >= 0) close(ended);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

namespace {

// The needs of mpirun 4.1.4 and the daemons of other hosts, without ranks and per rank (measured).
constexpr uint64_t kFiles = 26, kFilesOfRank = 4;
constexpr uint64_t kProcesses = 3, kProcessesOfRank = 2;
// A job of dtrun does not reach such a limit, so the user's processes are not counted.
constexpr uint64_t kFarAway = 8192;

uint64_t LimitOf(__rlimit_resource resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_cur;
}

uint64_t ThreadsOfUser() {
  uint64_t threads = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    struct stat status;
    if (!base::ParseInteger(entry.path().filename().string())) continue;
    if (stat(entry.path().c_str(), &status) != 0 || status.st_uid != getuid()) continue;
    std::error_code gone;
    const std::filesystem::directory_iterator tasks(entry.path() / "task", gone);
    threads += static_cast<uint64_t>(std::distance(begin(tasks), end(tasks)));
  }
  return threads;
}

// The limit of this process's cgroups (version 1 or 2) on processes and threads, for example "32";
// "": none.
std::string PidsOfCgroup() {
  const std::string cgroups = ReadFileOfSystem("/proc/self/cgroup").value_or("");
  for (const std::string& line : base::Split(cgroups, '\n')) {
    const std::vector<std::string> parts = base::Split(line, ':');  // "8:pids:/a/b" or "0::/a/b"
    if (parts.size() != 3 || (parts[1] != "pids" && !parts[1].empty())) continue;
    const std::string folder = Text("/sys/fs/cgroup/", parts[1], parts[2]);
    const std::string limit = ReadFileOfSystem(folder + "/pids.max").value_or("max");
    if (!limit.starts_with("max")) return limit.substr(0, limit.find('\n'));
  }
  return "";
}

}  // namespace

// RLIMIT_NPROC does not apply to root.
Limits LimitsOfHost() {
  Limits limits;
  limits.files = LimitOf(RLIMIT_NOFILE);
  if (getuid() != 0) limits.processes = LimitOf(RLIMIT_NPROC);
  if (limits.processes < kFarAway) limits.running = ThreadsOfUser();
  return limits;
}

void CheckLimits(const Limits& limits, int ranks) {
  const auto count = static_cast<uint64_t>(ranks);
  const char* needs = ranks == 1 ? " rank needs " : " ranks need ";
  const uint64_t files = kFiles + kFilesOfRank * count;
  if (limits.files < files)
    throw LaunchError(
        ExitCode::kUnavailable,
        Text(
            "this host allows a process ", limits.files, " open files; ", ranks, needs, files,
            " (ulimit -n ", files, " raises the limit)"));
  const uint64_t processes = kProcesses + kProcessesOfRank * count;
  if (limits.processes < limits.running + processes)
    throw LaunchError(
        ExitCode::kUnavailable, Text(
                                    "this host allows this user ", limits.processes,
                                    " processes and threads (ulimit -u), of which ", limits.running,
                                    " run; ", ranks, needs, processes, " more"));
}

std::string ErrorWithLimit(int error) {
  std::string text = Text(": ", std::strerror(error));
  if (error == EMFILE) text += Text(" (ulimit -n is ", LimitOf(RLIMIT_NOFILE), ")");
  if (error != EAGAIN) return text;
  // The cgroup's limit applies to root, too; RLIMIT_NPROC does not.
  if (const std::string pids = PidsOfCgroup(); !pids.empty())
    text += Text(" (the cgroup allows ", pids, " processes and threads, pids.max)");
  else if (getuid() != 0 && LimitOf(RLIMIT_NPROC) != UINT64_MAX)
    text += Text(" (ulimit -u is ", LimitOf(RLIMIT_NPROC), ")");
  return text;
}

OutputPipe MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw LaunchError(ExitCode::kInternal, "cannot make a pipe" + ErrorWithLimit(errno));
  return {ends[0], ends[1]};
}

OutputPipe MakeTerminal(int columns, int rows) {
  winsize size = {};
  size.ws_col = static_cast<unsigned short>(columns > 0 ? columns : 80);
  size.ws_row = static_cast<unsigned short>(rows > 0 ? rows : 24);
  OutputPipe terminal;
  if (openpty(&terminal.read, &terminal.write, nullptr, nullptr, &size) != 0) return MakePipe();
  termios mode = {};
  tcgetattr(terminal.write, &mode);
  cfmakeraw(&mode);
  tcsetattr(terminal.write, TCSANOW, &mode);
  fcntl(terminal.read, F_SETFD, FD_CLOEXEC);
  fcntl(terminal.write, F_SETFD, FD_CLOEXEC);
  return terminal;
}

}  // namespace dtrun::launcher
