// dtrun reads the request (cli/command_line.h), finds the hosts (plan/job_options.h) and plans the
// job (plan/job_plan.h). Then it starts the ranks and watches them (job/job_run.h).

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/launch_env.h"
#include "base/text.h"
#include "base/version.h"
#include "launcher/cli/command_line.h"
#include "launcher/doctor/doctor.h"
#include "launcher/engines/executables.h"
#include "launcher/engines/launch_engine.h"
#include "launcher/hosts/hosts.h"
#include "launcher/job/elastic_hosts.h"
#include "launcher/job/job_front.h"
#include "launcher/job/job_run.h"
#include "launcher/plan/cpu_binding.h"
#include "launcher/plan/job_plan.h"
#include "launcher/protocol/job_folder.h"
#include "launcher/report/failure_report.h"
#include "launcher/report/job_story.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"
#include "launcher/support/user_files.h"

namespace dtrun::launcher {

using base::JsonText;

/// The place of a rank in a planned job.
struct RankPlace {
  int rank;
  int local_rank;
  std::string host;
  std::optional<CpuPlan> cpus;  ///< nullopt for another host, where the CPUs are not known
};

/// The places of all ranks. `cpus` and `quota` are those of this machine. Throws UsageError for a
/// binding that this machine cannot provide.
std::vector<RankPlace> PlacesOf(
    const EngineCall& call, Bind bind, const std::vector<Cpu>& cpus, std::optional<double> quota);

/// The command, quoted for a shell, then a line for each rank.
std::string PlanText(const EngineCall& call, const std::vector<RankPlace>& places);

/// The same as JSON: "command" (the words), "variables" (names of forwarded variables) and "ranks".
std::string PlanJson(const EngineCall& call, const std::vector<RankPlace>& places);

/// The output of --check-build: dtrun's parts and the MPI that it would use, each with its path or
/// its error. `path` is $PATH.
struct BuildReport {
  std::string text;
  bool complete;  ///< all parts that this launcher needs were found
};

BuildReport CheckBuild(const std::string& path, const LaunchEngine& engine);

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
      PlacesOf(plan.call, options.bind, AllowedCpus(), CpuQuota(ReadFileOfSystem));
  if (options.json == "-") return Print(PlanJson(plan.call, places));
  if (!options.json.empty()) ResultFile(options.json).Write(PlanJson(plan.call, places));
  std::string text = PlanText(plan.call, places);
  for (const std::string& line : networks) text += line + "\n";
  return Print(text);
}

// Reports an impossible binding once, instead of once per rank.
void CheckBinding(const Options& options, const Plan& plan) {
  if (options.bind == Bind::kCore)
    PlacesOf(plan.call, options.bind, AllowedCpus(), CpuQuota(ReadFileOfSystem));
}

// A user who has set OMPI_ALLOW_RUN_AS_ROOT needs no warning.
void WarnOfRoot() {
  if (geteuid() != 0 || !base::ProcessEnv("OMPI_ALLOW_RUN_AS_ROOT").value_or("").empty()) return;
  Say("warning: running as root (OMPI_ALLOW_RUN_AS_ROOT=1 ends this warning)");
}

// Only a missing default lets dtrun choose another engine.
void SayChoice(const Options& options, const LaunchEngine& engine) {
  const LaunchEngine& first = *LaunchEngines().front();
  if (!options.verbose || options.engine != nullptr || engine.name() == first.name()) return;
  const bool is_there =
      SearchPath(first.program(), base::ProcessEnv("PATH").value_or("")).has_value();
  Say(base::Text(
      first.program(), is_there ? " in PATH is none that dtrun can use" : " was not found in PATH",
      "; dtrun uses --launcher ", engine.name()));
}

int Doctor(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  const DoctorResult result = RunDoctor(arguments, surroundings);
  Print(result.text);
  return result.exit_code;
}

// Writes the report, if the user has asked for one. The job's failure takes precedence over an
// error of the file.
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
    SayChoice(options, *plan.call.engine);
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

// The exit code of `work`, which may throw.
int CodeOf(const std::function<int()>& work) {
  try {
    return work();
  } catch (const LaunchError& error) {
    Say(error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    Say(error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}

// Opens /dev/null for each closed standard stream. Otherwise a file that dtrun opens later would
// become that stream.
void OpenStandardStreams() {
  for (int file = open("/dev/null", O_RDWR); file >= 0; file = open("/dev/null", O_RDWR)) {
    if (file <= STDERR_FILENO) continue;
    close(file);
    return;
  }
}

// Starts with the hosts that the user's program names, as soon as they have enough slots.
std::vector<Host> UseDiscovery(Options& options) {
  CheckElastic(options);
  const int least = options.min_ranks > 0 ? options.min_ranks : std::max(options.ranks, 1);
  std::vector<Host> hosts = DiscoverHosts(
      options.discovery, options.slots_per_host, least,
      std::chrono::seconds(options.elastic_timeout_s));
  const auto slots = static_cast<int>(SlotCount(hosts));
  options.max_ranks = std::max(options.max_ranks, options.ranks);
  if (options.ranks > slots) options.ranks = slots;
  if (options.min_ranks == 0) options.min_ranks = options.ranks > 0 ? options.ranks : slots;
  return hosts;
}

int Main(const std::vector<std::string>& arguments) {
  const Surroundings surroundings = {ReadUserFile, base::ProcessEnv};
  if (!arguments.empty() && arguments[0] == "doctor")
    return Doctor({arguments.begin() + 1, arguments.end()}, surroundings);
  const Request request = ReadRequest(arguments, surroundings);
  Options options = request.options;
  switch (options.action) {
    case Action::kHelp: return Print(HelpText(false));
    case Action::kHelpAll: return Print(HelpText(true));
    case Action::kVersion: return Print(base::Text("dtrun ", base::kVersion, '\n'));
    case Action::kCompletion: return Print(BashCompletion(DoctorSpellings()));
    case Action::kCheckBuild: {
      const std::string path = base::ProcessEnv("PATH").value_or("");
      EngineCall call;
      call.placement = {{OwnHostName(), 1}};
      call.only_this_machine = true;
      const LaunchEngine& engine =
          options.engine != nullptr ? *options.engine : ChooseLaunchEngine(call, path);
      const BuildReport report = CheckBuild(path, engine);
      const int printed = Print(report.text);
      return report.complete ? printed : static_cast<int>(ExitCode::kUnavailable);
    }
    case Action::kAttach: return AttachToJob(options.attach);
    case Action::kRun:
    case Action::kDryRun:
    case Action::kPrintEnv:
    case Action::kPrintConfig: break;
  }
  const bool discovers = !options.discovery.empty() && options.action != Action::kPrintConfig;
  const std::vector<Host> hosts =
      discovers ? UseDiscovery(options) : FindHosts(options, surroundings);
  if (options.action == Action::kPrintConfig)
    return Print(PrintedConfig(request.settings, options, hosts));
  Plan plan = PlanRanks(options, hosts);
  if (options.action == Action::kPrintEnv)
    return Print(PrintedEnvironment(plan.environment, plan.call.exported));
  if (options.action == Action::kRun) {
    if (options.orphan_grace_s == 0) return Run(options, std::move(plan));
    return RunHeld(std::chrono::seconds(options.orphan_grace_s), [&] {
      return CodeOf([&] { return Run(options, plan); });
    });
  }
  PlanCommand(options, plan);
  return DryRun(options, std::move(plan));
}

}  // namespace

namespace {

using base::Text;
using nlohmann::json;

std::string CpuText(const CpuPlan& plan) {
  const char* threads = plan.threads == 1 ? " thread" : " threads";
  return Text(CpusInWords(plan.pinned), ", ", plan.threads, threads);
}

json RankJson(const RankPlace& place) {
  json rank = {{"rank", place.rank}, {"host", place.host}, {"local_rank", place.local_rank}};
  if (!place.cpus) return rank;
  rank["threads"] = place.cpus->threads;
  rank["cpus"] = place.cpus->pinned.empty() ? json("all") : json(CpuList(place.cpus->pinned));
  return rank;
}

}  // namespace

std::vector<RankPlace> PlacesOf(
    const EngineCall& call, Bind bind, const std::vector<Cpu>& cpus, std::optional<double> quota) {
  std::vector<RankPlace> places;
  int rank = 0;
  for (const base::HostSlots& host : call.placement) {
    const bool is_here = IsHere(host.name);
    for (int slot = 0; slot < host.slots; ++slot) {
      std::optional<CpuPlan> plan;
      if (is_here) plan = BindCpus(cpus, quota, bind, slot, host.slots);
      places.push_back({rank++, slot, host.name, plan});
    }
  }
  return places;
}

std::string PlanText(const EngineCall& call, const std::vector<RankPlace>& places) {
  std::string text = ShellLine(call.engine->Argv(call)) + "\n";
  for (const RankPlace& place : places)
    text += Text(
        "rank ", place.rank, " -> ", place.host,
        place.cpus ? ": " + CpuText(*place.cpus) : std::string(), '\n');
  return text;
}

std::string PlanJson(const EngineCall& call, const std::vector<RankPlace>& places) {
  json ranks = json::array();
  for (const RankPlace& place : places) ranks.push_back(RankJson(place));
  const json plan = {
      {"command", call.engine->Argv(call)}, {"variables", call.exported}, {"ranks", ranks}};
  return JsonText(plan, 2) + "\n";
}

namespace {

using base::Text;

struct Part {
  std::string name;
  bool needed;  // to start any job
  std::function<std::string()> find;
};

std::string LibraryFile(const std::string& name) {
  for (const OwnLibrary& library : OwnLibraries())
    if (library.name == name && !library.file.empty()) return library.file;
  throw LaunchError(ExitCode::kUnavailable, "not installed beside dtrun");
}

}  // namespace

BuildReport CheckBuild(const std::string& path, const LaunchEngine& engine) {
  std::vector<Part> parts;
  for (const LaunchEngine* each : LaunchEngines())
    if (!each->is_own())
      parts.push_back({each->program(), each == &engine, [&, each] { return each->Find(path); }});
  const std::vector<Part> own = {
      {"dtrun_rank", true, [] { return FindHelper("dtrun_rank"); }},
      {"dtrun_agent", true, [] { return FindHelper("dtrun_agent"); }},
      {"dtrun_daemon", true, [] { return FindHelper("dtrun_daemon"); }},
      {"dtrun_listen.so", true, [] { return FindHelper("dtrun_listen.so"); }},
      {"dtrun_reach", true, [] { return FindHelper("dtrun_reach"); }},
      {"dtrun_local", true, [] { return FindHelper("dtrun_local"); }},
      {"libdtrun.so", false, [] { return LibraryFile("libdtrun.so.0"); }},
      {"libdtrun_mpi.so", false, [] { return LibraryFile("libdtrun_mpi.so"); }},
      {"libdtrun_mpich.so", false, [] { return LibraryFile("libdtrun_mpich.so"); }},
      {"libdtrun_ucx.so", false, [] { return LibraryFile("libdtrun_ucx.so"); }},
  };
  parts.insert(parts.end(), own.begin(), own.end());
  BuildReport report = {Text("dtrun ", base::kVersion, '\n'), true};
  for (const Part& part : parts) {
    try {
      report.text += Text("[x] ", part.name, ": ", part.find(), '\n');
    } catch (const LaunchError& error) {
      report.text += Text("[ ] ", part.name, ": ", error.what(), '\n');
      report.complete = report.complete && !part.needed;
    }
  }
  return report;
}

}  // namespace dtrun::launcher

int main(int argc, char** argv) {
  using namespace dtrun::launcher;
  OpenStandardStreams();
  return CodeOf(
      [&] { return Main(std::vector<std::string>(argv + std::min(argc, 1), argv + argc)); });
}
