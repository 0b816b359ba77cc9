#include "launcher/left_overs.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "base/text.h"
#include "launcher/system_file.h"

namespace dtrun::launcher {
namespace {

// A process that ends meanwhile has no environment any more.
bool IsOfJob(const std::filesystem::path& process, const std::string& variable) {
  struct stat status;
  if (stat(process.c_str(), &status) != 0 || status.st_uid != geteuid()) return false;
  const std::string environment = ReadFileOfSystem(process / "environ").value_or("");
  return ('\0' + environment).find('\0' + variable + '\0') != std::string::npos;
}

// What follows the name in /proc/PID/stat, which may hold anything itself: " S PARENT ...".
std::optional<std::string> StateOf(pid_t process) {
  const std::string stat = ReadFileOfSystem(base::Text("/proc/", process, "/stat")).value_or("");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || stat.size() < name_end + 4) return std::nullopt;
  return stat.substr(name_end + 2);
}

}  // namespace

pid_t ParentOf(pid_t process) {
  const std::optional<std::string> state = StateOf(process);
  if (!state) return -1;
  const std::string parent = state->substr(2, state->find(' ', 2) - 2);
  return static_cast<pid_t>(base::ParseInteger(parent).value_or(-1));
}

bool IsRunning(pid_t process) {
  const std::optional<std::string> state = StateOf(process);
  return state && state->front() != 'Z' && state->front() != 'X';
}

void SignalGroupOf(pid_t process, int signal) {
  const pid_t group = getpgid(process);
  if (group > 1 && group != getpgrp()) kill(-group, signal);
}

void KillProcessesOf(const std::string& job) {
  if (job.empty()) return;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto process = base::ParseInteger(entry.path().filename().string());
    if (!process || *process == getpid()) continue;
    if (IsOfJob(entry.path(), "DTRUN_JOB=" + job)) kill(static_cast<pid_t>(*process), SIGKILL);
  }
}

}  // namespace dtrun::launcher
