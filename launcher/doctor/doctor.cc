// One thread per host looks at the host (host_look.cc). All threads have the same deadline. Then
// FindingsOf judges the looks, and DoctorText or DoctorJson prints them (diagnosis.h).

#include "launcher/doctor/doctor.h"

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/option_settings.h"
#include "launcher/doctor/diagnosis.h"
#include "launcher/engines/executables.h"
#include "launcher/hosts/hosts.h"
#include "launcher/plan/job_plan.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/user_files.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;

// The looks of all threads. The threads share the ownership, because a look may outlast LookAtAll:
// a name service may be slow.
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

HostLook Failed(const Target& target, const std::exception& error) {
  return {
      .host = target.host,
      .slots = target.slots,
      .address = "",
      .reach = {{true, "dtrun", error.what(), "a look at the host", ""}}};
}

HostLook LookOrFail(const Target& target, const LookPlan& plan) {
  try {
    return LookAt(target, plan);
  } catch (const std::exception& error) {
    return Failed(target, error);
  }
}

std::vector<HostLook> LookAtAll(const std::vector<Target>& targets, const LookPlan& plan) {
  const auto looks = std::make_shared<Looks>();
  looks->results.resize(targets.size());
  looks->missing = targets.size();
  const auto end = [looks](size_t i, HostLook look) {
    const std::lock_guard lock(looks->mutex);
    looks->results[i] = std::move(look);
    if (--looks->missing == 0) looks->done.notify_one();
  };
  for (size_t i = 0; i < targets.size(); ++i) {
    try {
      std::thread([end, i, target = targets[i], plan] {
        end(i, LookOrFail(target, plan));
      }).detach();
    } catch (const std::system_error& error) {
      end(i, Failed(targets[i], error));
    }
  }
  std::unique_lock lock(looks->mutex);
  looks->done.wait_until(
      lock, plan.deadline + std::chrono::seconds(1), [&] { return looks->missing == 0; });
  std::vector<HostLook> seen;
  for (size_t i = 0; i < targets.size(); ++i)
    seen.push_back(looks->results[i] ? *looks->results[i] : Unfinished(targets[i]));
  return seen;
}

// The path of the program that a job would run. If there is no such file, the probe reports it for
// each host.
std::string ProgramFile(const std::vector<std::string>& program, const std::string& path) {
  if (program.empty()) return "";
  if (program[0].find('/') != std::string::npos) return program[0];
  return SearchPath(program[0], path).value_or(program[0]);
}

LookPlan PlanLook(const Options& options, const LaunchEngine& engine) {
  Plan plan;
  plan.call.engine = &engine;
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
    targets.push_back({host.name, host.slots, IsHere(host.name)});
  if (targets.empty()) targets.push_back({OwnHostName(), 0, true});
  return targets;
}

// The part of a job on these hosts that decides which engines can start it.
EngineCall CallOf(const Options& options, const std::vector<Target>& targets) {
  EngineCall call;
  for (const Target& target : targets) call.placement.push_back({target.host, target.slots});
  call.only_this_machine = std::all_of(
      targets.begin(), targets.end(), [](const Target& target) { return target.on_this_machine; });
  call.mpi_args = options.mpi_args;
  return call;
}

// Why the engine cannot start the job. A missing or unknown mpirun is a finding about Open MPI.
std::optional<Finding> ProblemOf(
    const LaunchEngine& engine, const EngineCall& call, const std::string& path) {
  const bool is_missing = engine.is_own() && !engine.IsInstalled(path);
  const std::string why = is_missing ? Text("no ", engine.name(), " in PATH") : engine.Probe(call);
  if (why.empty()) return std::nullopt;
  return Finding{
      true, "launcher", Text(engine.name(), ", which cannot start the job: ", why),
      "another launcher", Text("--launcher ", ChooseLaunchEngine(call, path).name())};
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
  // Jobs start from this machine, so doctor looks at it even if it takes no ranks.
  const auto is_here = [](const Target& target) { return target.on_this_machine; };
  size_t here =
      static_cast<size_t>(std::find_if(targets.begin(), targets.end(), is_here) - targets.begin());
  const EngineCall call = CallOf(options, targets);
  const std::string path = base::ProcessEnv("PATH").value_or("");
  const LaunchEngine& engine =
      options.engine != nullptr ? *options.engine : ChooseLaunchEngine(call, path);
  if (here == targets.size()) targets.push_back({OwnHostName(), 0, true});
  const std::vector<HostLook> looks = LookAtAll(targets, PlanLook(options, engine));
  std::vector<Diagnosis> hosts;
  for (const HostLook& look : looks)
    hosts.push_back({look, FindingsOf(look, looks[here], !engine.is_own())});
  if (const auto problem = ProblemOf(engine, call, path))
    hosts[here].findings.insert(hosts[here].findings.begin(), *problem);
  const std::string json = DoctorJson(hosts, looks[here], engine.name());
  if (file) file->Write(json);
  return {
      options.json == "-" ? json : DoctorText(hosts, looks[here], engine.name()),
      static_cast<int>(AllReady(hosts) ? ExitCode::kSuccess : ExitCode::kUnavailable)};
}

namespace {

using base::Text;

// The options of doctor, by their keys in the option table.
constexpr const char* kTaken[] = {
    "hosts",    "hostfile",     "slots-per-host", "config", "start-timeout", "launcher",
    "ssh-port", "ssh-identity", "mpi-args",       "json",   "help"};

constexpr char kHelp[] = "dtrun doctor --help lists its options";

bool IsTaken(const OptionRow& row) {
  return std::find(std::begin(kTaken), std::end(kTaken), KeyOf(row)) != std::end(kTaken);
}

std::vector<const OptionRow*> TakenRows() {
  std::vector<const OptionRow*> rows;
  for (const OptionRow& row : OptionTable())
    if (IsTaken(row)) rows.push_back(&row);
  return rows;
}

// Some options have a different help text in doctor.
std::string HelpOf(const OptionRow& row) {
  if (KeyOf(row) == "json") return "write all that is known as JSON; - is stdout";
  if (KeyOf(row) == "start-timeout") return "be done after this time (default: 60)";
  if (KeyOf(row) == "help") return "these options";
  if (KeyOf(row) == "hosts") return "hosts to look at, with the ranks that each is to take";
  return row.help;
}

}  // namespace

DoctorRequest ReadDoctorRequest(
    const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  const CommandLine line = ParseCommandLine(arguments, kHelp);
  for (const Setting& setting : line.settings)
    if (!IsTaken(*setting.option))
      throw UsageError(
          Text("dtrun doctor does not take ", TypedName(*setting.option), " (", kHelp, ")"));
  Settings settings = line.settings;
  DoctorRequest request;
  request.options = UnderstandSettings(MergeSettings(settings));
  request.help = request.options.action == Action::kHelp;
  if (request.help) return request;
  if (!line.config.empty())
    for (const Setting& setting : ParseConfig(line.config, surroundings.read_file(line.config)))
      settings.push_back(setting);
  request.options = UnderstandSettings(MergeSettings(settings));
  request.options.program = line.program;
  return request;
}

std::string DoctorHelp() {
  std::string options;
  for (const OptionRow* row : TakenRows()) {
    std::string left = Text("  ", row->spellings, TakesValue(*row) ? " " : "", row->value);
    left.resize(std::max<size_t>(left.size() + 2, 42), ' ');
    options += left + HelpOf(*row) + "\n";
  }
  return Text(
      "Looks whether a job could start: on all hosts at once, without starting a rank.\n"
      "Usage: dtrun doctor [OPTIONS] [PROGRAM]\n"
      "\n",
      options,
      "\n"
      "Hosts come from -H or --hostfile, else from TF_CONFIG or an allocation, as for a job;\n"
      "otherwise this host is looked at. Each has to have a name with an address, an sshd that\n"
      "lets dtrun in without a question, this version of dtrun, the Open MPI of this host unless\n"
      "--launcher needs none and, if PROGRAM is given, the same file with all its libraries.\n"
      "CPUs, NUMA nodes, GPUs, networks,\n"
      "memory, space for temporary files and clocks are reported.\n"
      "\n"
      "Exit code: 0 when a job could start, with warnings or without; 69 when something would "
      "stop\n"
      "it; 2 for a wrong command line. A program called doctor runs as dtrun ./doctor.\n");
}

std::vector<std::string> DoctorSpellings() {
  std::vector<std::string> spellings;
  for (const OptionRow* row : TakenRows())
    for (const std::string& spelling : base::Split(row->spellings, ','))
      spellings.push_back(spelling);
  return spellings;
}

}  // namespace dtrun::launcher
