#include "launcher/agent/rank_start.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/flight_record.h"
#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/protocol/exit_record.h"
#include "launcher/protocol/job_folder.h"
#include "launcher/support/environment.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

// The strings of a file of /proc, each of which ends with a zero byte.
std::vector<std::string> StringsIn(const std::string& path) {
  std::string bytes = ReadFileOfSystem(path).value_or("");
  if (bytes.empty()) return {};
  bytes.pop_back();
  return base::Split(bytes, '\0');
}

// Sets the variables in `changed` (NAME=value).
void Replace(Variables& environment, const std::vector<std::string>& changed) {
  for (const std::string& variable : changed)
    Set(environment, NameOf(variable), variable.substr(variable.find('=') + 1));
}

// Runs between fork and exec, so it calls only async-signal-safe functions. Stdin and stdout of the
// agent lead to dtrun.
[[noreturn]] void Become(
    char* const argv[], char* const environment[], const char* folder, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  setpgid(0, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2})
    ::signal(signal, SIG_DFL);
  const int null = open("/dev/null", O_RDWR);
  dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
  [[maybe_unused]] const int ignored = chdir(folder);
  execve(argv[0], argv, environment);
  _exit(static_cast<int>(ExitCode::kNotExecutable));
}

}  // namespace

// /proc shows the environment with which the process was started: the wrapper's own changes are in
// other memory.
RankStart RankStart::Of(pid_t wrapper) {
  const std::string process = Text("/proc/", wrapper);
  RankStart start;
  start.command_ = StringsIn(process + "/cmdline");
  start.environment_ = StringsIn(process + "/environ");
  std::error_code ignored;
  start.folder_ = std::filesystem::read_symlink(process + "/cwd", ignored);
  return start;
}

RankStart::RankStart(
    std::vector<std::string> command, const std::vector<std::string>& variables, std::string folder)
    : command_(std::move(command)), folder_(std::move(folder)) {
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment_.emplace_back(*variable);
  Replace(environment_, variables);
}

void RankStart::Again(const std::vector<std::string>& changed) const {
  if (command_.empty())
    throw LaunchError(ExitCode::kInternal, "the command of a lost rank is not known");
  std::vector<std::string> environment = environment_;
  Replace(environment, changed);
  const std::vector<char*> argv = Pointers(command_), variables = Pointers(environment);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) Become(argv.data(), variables.data(), folder_.c_str(), parent);
  if (child < 0)
    throw LaunchError(ExitCode::kInternal, Text("cannot start a process: ", std::strerror(errno)));
  setpgid(child, child);  // the child does the same; either may be first
}

void ForgetNotes(const std::string& folder, int rank) {
  const std::string note = ShutdownNote(folder, rank);
  std::error_code ignored;
  for (const std::string& file :
       {note, base::InitNote(note), base::JoinedNote(note),
        base::FlightFile(FlightFolder(folder), rank)})
    std::filesystem::remove(file, ignored);
}

void ReapChildren() {
  while (waitpid(-1, nullptr, WNOHANG) > 0) continue;
}

}  // namespace dtrun::launcher
