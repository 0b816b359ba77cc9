#include "launcher/agent/left_overs.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/flight_record.h"
#include "base/text.h"
#include "base/trace.h"
#include "launcher/support/host_system.h"

namespace dtrun::launcher {
namespace {

// If the process ends meanwhile, it has no environment any more.
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

// Two processes that were started within a tick of the clock have the same start time.
bool IsOutsideOfJob(pid_t process) {
  const auto view = ViewProcess(process), own = ViewProcess(getpid());
  if (!view || !own || view->start < own->start) return true;
  for (pid_t ancestor = own->parent; ancestor > 0;) {
    if (ancestor == process) return true;
    ancestor = ViewProcess(ancestor).value_or(ProcessView()).parent;
  }
  return false;
}

void LeftOvers::Look(pid_t process) {
  std::erase_if(starts_, [](const auto& known) {
    const auto view = ViewProcess(known.first);
    return !view || view->start != known.second;
  });
  if (IsOutsideOfJob(process)) return;
  for (const pid_t found : DescendantsOf(process))
    if (const auto view = ViewProcess(found)) starts_[found] = view->start;
}

void LeftOvers::Kill() const {
  for (const auto& [process, start] : starts_) {
    const auto view = ViewProcess(process);
    if (view && view->start == start) kill(process, SIGKILL);
  }
}

namespace {

using nlohmann::json;

void ForEachRecord(
    const std::string& folder, const std::function<void(int rank, const std::string& path)>& use) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto rank = base::ParseInteger(entry.path().filename().string());
    if (!rank || !entry.is_regular_file(error) || entry.is_symlink(error)) continue;
    use(static_cast<int>(*rank), entry.path());
  }
}

// The rank may change the totals while they are read, so no part may exceed its whole.
json JsonOf(const base::StepTotals& totals) {
  const int64_t total_ns = std::max<int64_t>(totals.total_ns, 0);
  const int64_t exposed_ns = std::clamp<int64_t>(totals.exposed_ns, 0, total_ns);
  return {
      {"steps", totals.steps},    {"total_ns", total_ns},
      {"exposed_ns", exposed_ns}, {"late_ns", std::clamp<int64_t>(totals.late_ns, 0, exposed_ns)},
      {"bytes", totals.bytes},    {"buckets", totals.buckets}};
}

}  // namespace

std::vector<Frame> FlightFrames(const std::string& folder) {
  std::vector<Frame> frames;
  ForEachRecord(folder, [&](int rank, const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes(kMostBody, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(static_cast<size_t>(file.gcount()));
    frames.push_back({FrameType::kFlight, rank, std::move(bytes)});
  });
  return frames;
}

void ForEachTracePart(const std::string& folder, const std::function<void(Frame)>& use) {
  constexpr char kName[] = "trace.";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kName) || entry.is_symlink(error)) continue;
    const auto rank = base::ParseInteger(name.substr(sizeof kName - 1));
    if (!rank) continue;
    base::WithTraceFile(entry.path(), [&](const void* data, size_t bytes) {
      const auto* from = static_cast<const char*>(data);
      for (size_t begin = 0; begin < bytes; begin += kMostBody)
        use(
            {FrameType::kTrace, static_cast<int>(*rank),
             std::string(from + begin, std::min<size_t>(kMostBody, bytes - begin))});
    });
  }
}

Frame ProgressFrame(const std::string& folder) {
  json ranks = json::array();
  ForEachRecord(folder, [&](int rank, const std::string& path) {
    const auto progress = base::ReadFlightProgress(path);
    if (!progress || progress->rank != rank) return;
    ranks.push_back(
        {{"rank", rank},
         {"step", progress->step},
         {"examples", progress->examples},
         {"waited_ns", progress->waited_ns},
         {"reduced", JsonOf(progress->reduced)}});
  });
  return {FrameType::kProgress, -1, ranks.dump()};
}

}  // namespace dtrun::launcher
