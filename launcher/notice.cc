#include "launcher/notice.h"

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "base/text.h"
#include "launcher/system_file.h"

namespace dtrun::launcher {
namespace {

bool Holds(const std::string& status, const char* set, int signal) {
  const size_t at = status.find(set);
  if (at == std::string::npos) return false;
  const uint64_t signals =
      std::strtoull(status.c_str() + at + std::string(set).size(), nullptr, 16);
  return (signals >> (signal - 1) & 1) != 0;
}

}  // namespace

int NoticeSignal() { return SIGUSR1; }

bool TakesNotices(const std::string& status) {
  return Holds(status, "\nSigCgt:", SIGUSR1) || Holds(status, "\nSigBlk:", SIGUSR1);
}

std::vector<pid_t> NoticeTakers() {
  std::vector<pid_t> takers;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto number = base::ParseInteger(entry.path().filename().string());
    if (!number) continue;
    const auto process = static_cast<pid_t>(*number);
    if (process == getpid() || getpgid(process) != getpgrp()) continue;
    const auto status = ReadFileOfSystem(entry.path() / "status");
    if (status && TakesNotices(*status)) takers.push_back(process);
  }
  return takers;
}

}  // namespace dtrun::launcher
