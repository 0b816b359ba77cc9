// Every host is looked at by a thread of its own (look.h), all by the same deadline; what they have
// seen is judged afterwards (findings.h) and printed (report.h).

#include "launcher/doctor/doctor.h"

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/doctor/command.h"
#include "launcher/doctor/look.h"
#include "launcher/doctor/report.h"
#include "launcher/engine.h"
#include "launcher/hosts.h"
#include "launcher/launch_error.h"
#include "launcher/plan.h"
#include "launcher/program.h"
#include "launcher/result_file.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;

// Looks that are under way. Outlives a look that does not end: a name service may take its time.
struct Looks {
  std::mutex mutex;
  std::condition_variable done;
  std::vector<std::optional<HostLook>> results;
  size_t missing;
};

HostLook Unfinished(const Target& target) {
  return {
      .host = target.host,
      .slots = target.slots,
      .address = "",
      .reach = {
          {true, "name", "no answer of the name service in time", "an address",
           "see /etc/hosts and DNS"}}};
}

HostLook LookOrFail(const Target& target, const LookPlan& plan) {
  try {
    return LookAt(target, plan);
  } catch (const std::exception& error) {
    return {
        .host = target.host,
        .slots = target.slots,
        .address = "",
        .reach = {{true, "dtrun", error.what(), "a look at the host", ""}}};
  }
}

std::vector<HostLook> LookAtAll(const std::vector<Target>& targets, const LookPlan& plan) {
  const auto looks = std::make_shared<Looks>();
  looks->results.resize(targets.size());
  looks->missing = targets.size();
  for (size_t i = 0; i < targets.size(); ++i)
    std::thread([looks, i, target = targets[i], plan] {
      HostLook look = LookOrFail(target, plan);
      const std::lock_guard lock(looks->mutex);
      looks->results[i] = std::move(look);
      if (--looks->missing == 0) looks->done.notify_one();
    }).detach();
  std::unique_lock lock(looks->mutex);
  looks->done.wait_until(
      lock, plan.deadline + std::chrono::seconds(1), [&] { return looks->missing == 0; });
  std::vector<HostLook> seen;
  for (size_t i = 0; i < targets.size(); ++i)
    seen.push_back(looks->results[i] ? *looks->results[i] : Unfinished(targets[i]));
  return seen;
}

// The file that a job would run. One that is not there is for the probe to say, of every host.
std::string ProgramFile(const std::vector<std::string>& program, const std::string& path) {
  if (program.empty()) return "";
  if (program[0].find('/') != std::string::npos) return program[0];
  return SearchPath(program[0], path).value_or(program[0]);
}

LookPlan PlanLook(const Options& options) {
  Plan plan;
  plan.environment = OwnVariables();
  plan.call.mpi_args = options.mpi_args;
  const std::string path = base::ProcessEnv("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  std::error_code ignored;
  return {
      .reach = PlanReach(options, plan),
      .probe = FindHelper("dtrun_probe"),
      .request =
          {.mpirun = SearchPath("mpirun", path).value_or(""),
           .program = ProgramFile(options.program, path),
           .cwd = std::filesystem::current_path(ignored),
           .library_path = base::ProcessEnv("LD_LIBRARY_PATH").value_or(""),
           .seconds = options.start_timeout_s},
      .deadline = Clock::now() + std::chrono::seconds(options.start_timeout_s)};
}

std::vector<Target> TargetsOf(const Options& options, const Surroundings& surroundings) {
  std::vector<Target> targets;
  for (const Host& host : FindHosts(options, surroundings))
    targets.push_back({host.name, host.slots, IsThisMachine(host.name, OwnHostName())});
  if (targets.empty()) targets.push_back({OwnHostName(), 0, true});
  return targets;
}

}  // namespace

DoctorResult RunDoctor(
    const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  const DoctorRequest request = ReadDoctorRequest(arguments, surroundings);
  if (request.help) return {DoctorHelp(), static_cast<int>(ExitCode::kSuccess)};
  const Options& options = request.options;
  std::vector<Target> targets = TargetsOf(options, surroundings);
  std::optional<ResultFile> file;
  if (!options.json.empty() && options.json != "-") file.emplace(options.json);
  // Jobs start from this machine, so it is looked at although it may take no ranks.
  const auto is_here = [](const Target& target) { return target.on_this_machine; };
  size_t here =
      static_cast<size_t>(std::find_if(targets.begin(), targets.end(), is_here) - targets.begin());
  if (here == targets.size()) targets.push_back({OwnHostName(), 0, true});
  const std::vector<HostLook> looks = LookAtAll(targets, PlanLook(options));
  std::vector<Diagnosis> hosts;
  for (const HostLook& look : looks) hosts.push_back({look, FindingsOf(look, looks[here])});
  const std::string json = DoctorJson(hosts, looks[here]);
  if (file) file->Write(json);
  return {
      options.json == "-" ? json : DoctorText(hosts, looks[here]),
      static_cast<int>(AllReady(hosts) ? ExitCode::kSuccess : ExitCode::kUnavailable)};
}

}  // namespace dtrun::launcher
