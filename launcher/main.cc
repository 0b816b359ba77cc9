// dtrun: understands what the user says (settings.h, options.h), finds the hosts (host_sources.h),
// plans (plan.h), then starts mpirun and watches it (job.h).

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "base/text.h"
#include "base/version.h"
#include "launcher/check_build.h"
#include "launcher/command_line.h"
#include "launcher/completion.h"
#include "launcher/cpus.h"
#include "launcher/doctor/command.h"
#include "launcher/doctor/doctor.h"
#include "launcher/dry_run.h"
#include "launcher/failure_report.h"
#include "launcher/job.h"
#include "launcher/job_folder.h"
#include "launcher/job_networks.h"
#include "launcher/job_story.h"
#include "launcher/launch_error.h"
#include "launcher/monotonic.h"
#include "launcher/plan.h"
#include "launcher/result_file.h"
#include "launcher/system_file.h"
#include "launcher/user_file.h"

namespace dtrun::launcher {
namespace {

int Print(const std::string& text) {
  std::cout << text << std::flush;
  if (std::cout) return static_cast<int>(ExitCode::kSuccess);
  throw LaunchError(ExitCode::kNoResult, "cannot write to stdout");
}

int DryRun(const Options& options, Plan plan) {
  plan.call.folder = JobFolder::Pattern(FolderBase());
  const std::vector<std::string> networks = GuessNetworks(plan);
  const std::vector<RankPlace> places =
      PlacesOf(plan.call, options.bind, OwnHostName(), AllowedCpus(), CpuQuota(ReadFileOfSystem));
  if (options.json == "-") return Print(PlanJson(plan.call, places));
  if (!options.json.empty()) ResultFile(options.json).Write(PlanJson(plan.call, places));
  std::string text = PlanText(plan.call, places);
  for (const std::string& line : networks) text += line + "\n";
  return Print(text);
}

// What this machine cannot give is said once, and not by every rank.
void CheckBinding(const Options& options, const Plan& plan) {
  if (options.bind == Bind::kCore)
    PlacesOf(plan.call, options.bind, OwnHostName(), AllowedCpus(), CpuQuota(ReadFileOfSystem));
}

// Who has told Open MPI that root is meant need not hear it again.
void WarnOfRoot() {
  if (geteuid() != 0 || !base::ProcessEnv("OMPI_ALLOW_RUN_AS_ROOT").value_or("").empty()) return;
  Say("warning: running as root (OMPI_ALLOW_RUN_AS_ROOT=1 ends this warning)");
}

int Doctor(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  const DoctorResult result = RunDoctor(arguments, surroundings);
  Print(result.text);
  return result.exit_code;
}

// Writes the report, if there is one to write. A failure of the job counts for more than that of
// the file.
int Close(std::optional<ResultFile>& file, JobStory& story) {
  if (!file) return story.verdict.exit_code;
  story.ended_ns = MonotonicNs();
  try {
    file->Write(ReportJson(story));
  } catch (const LaunchError& error) {
    Say(error.what());
    if (story.verdict.exit_code == 0) return static_cast<int>(error.code());
  }
  return story.verdict.exit_code;
}

int Run(const Options& options, Plan plan) {
  JobStory story = {
      .command = options.program,
      .hosts = plan.call.placement,
      .started = std::chrono::system_clock::now(),
      .started_ns = MonotonicNs()};
  std::optional<ResultFile> report;
  if (!options.report_json.empty()) report.emplace(options.report_json);
  try {
    PlanCommand(options, plan);
    CheckBinding(options, plan);
    WarnOfRoot();
    RunJob(std::move(plan), options, story);
  } catch (const LaunchError& error) {
    Say(error.what());
    story.verdict = {static_cast<int>(error.code()), error.what()};
  } catch (const std::exception& error) {
    Say(error.what());
    story.verdict = {static_cast<int>(ExitCode::kInternal), error.what()};
  }
  return Close(report, story);
}

// A file of dtrun's own must not be taken for a stream that whoever started it had closed.
void OpenStandardStreams() {
  for (int file = open("/dev/null", O_RDWR); file >= 0; file = open("/dev/null", O_RDWR)) {
    if (file <= STDERR_FILENO) continue;
    close(file);
    return;
  }
}

int Main(const std::vector<std::string>& arguments) {
  const Surroundings surroundings = {ReadUserFile, base::ProcessEnv};
  if (!arguments.empty() && arguments[0] == "doctor")
    return Doctor({arguments.begin() + 1, arguments.end()}, surroundings);
  const Request request = ReadRequest(arguments, surroundings);
  const Options& options = request.options;
  switch (options.action) {
    case Action::kHelp: return Print(HelpText());
    case Action::kVersion: return Print(base::Text("dtrun ", base::kVersion, '\n'));
    case Action::kCompletion: return Print(BashCompletion(DoctorSpellings()));
    case Action::kCheckBuild: {
      const BuildReport report =
          CheckBuild(base::ProcessEnv("PATH").value_or(""), options.launcher);
      const int printed = Print(report.text);
      return report.complete ? printed : static_cast<int>(ExitCode::kUnavailable);
    }
    case Action::kRun:
    case Action::kDryRun:
    case Action::kPrintEnv:
    case Action::kPrintConfig: break;
  }
  const std::vector<Host> hosts = FindHosts(options, surroundings);
  if (options.action == Action::kPrintConfig)
    return Print(PrintedConfig(request.settings, options, hosts));
  Plan plan = PlanRanks(options, hosts);
  if (options.action == Action::kPrintEnv)
    return Print(PrintedEnvironment(plan.environment, plan.call.exported));
  if (options.action == Action::kRun) return Run(options, std::move(plan));
  PlanCommand(options, plan);
  return DryRun(options, std::move(plan));
}

}  // namespace
}  // namespace dtrun::launcher

int main(int argc, char** argv) {
  using namespace dtrun::launcher;
  OpenStandardStreams();
  try {
    return Main(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  } catch (const LaunchError& error) {
    Say(error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    Say(error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}
