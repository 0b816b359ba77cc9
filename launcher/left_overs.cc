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

}  // namespace

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
