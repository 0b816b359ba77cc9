// dtrun: plans (command line, hosts, placement, mpirun's command), then starts mpirun and watches
// it.

#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "base/text.h"
#include "base/version.h"
#include "launcher/engine.h"
#include "launcher/exit_record.h"
#include "launcher/flight_report.h"
#include "launcher/hosts.h"
#include "launcher/job_folder.h"
#include "launcher/launch_error.h"
#include "launcher/mpirun.h"
#include "launcher/options.h"
#include "launcher/program.h"
#include "launcher/quoting.h"
#include "launcher/result_file.h"
#include "launcher/supervisor.h"

namespace dtrun::launcher {
namespace {

using base::Text;

// The words may hold line breaks; what is said stays one line.
void Say(const std::string& message) {
  std::string line;
  for (char c : message) line += c == '\n' ? ' ' : c;
  std::cerr << Text("dtrun: ", line, '\n') << std::flush;
}

std::string RandomJobName() {
  unsigned char bits[16];
  if (getrandom(bits, sizeof bits, 0) != sizeof bits)
    throw LaunchError(ExitCode::kInternal, "the system gives no random numbers");
  std::string name;
  for (unsigned char byte : bits) {
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", byte);
    name += hex;
  }
  return name;
}

int TerminalColumns() {
  if (!isatty(STDOUT_FILENO)) return 0;
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string OwnHostName() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, HOST_NAME_MAX);
  return name;
}

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment.emplace_back(*variable);
  return environment;
}

bool Has(const std::vector<std::string>& environment, const std::string& name) {
  for (const std::string& variable : environment)
    if (variable.starts_with(name + "=")) return true;
  return false;
}

int RanksOnThisMachine(const std::vector<HostSlots>& placement) {
  const std::string own_name = OwnHostName();
  int ranks = 0;
  for (const HostSlots& host : placement)
    if (IsThisMachine(host.name, own_name)) ranks += host.slots;
  return ranks;
}

// All that is known before the job starts.
struct Plan {
  MpirunCall call;
  std::vector<std::string> environment;
};

// Removes what an outer dtrun said and adds what this one says.
void SayLaunch(const base::Environment& launch, Plan& plan) {
  std::erase_if(plan.environment, [](const std::string& variable) {
    return variable.starts_with("DTRUN_JOB=");
  });
  for (const auto& [name, value] : launch) {
    std::erase_if(plan.environment, [&, prefix = name + "="](const std::string& variable) {
      return variable.starts_with(prefix);
    });
    plan.environment.push_back(name + "=" + value);
    plan.call.exported.push_back(name);
  }
}

Plan MakePlan(const Options& options) {
  Plan plan;
  const std::string path = base::ProcessEnv("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  plan.environment = OwnEnvironment();
  plan.call.placement = PlaceRanks(options.hosts, options.ranks);
  for (const std::string& name : options.exported)
    if (!Has(plan.environment, name))
      throw UsageError(Text("-x ", name, ": this variable is not set"));
  plan.call.program = options.program;
  plan.call.program.front() = FindProgram(options.program.front(), path);
  plan.call.mpirun = FindMpirun(path);
  plan.call.wrapper = FindWrapper();
  plan.call.mpi_args = options.mpi_args;
  plan.call.only_this_machine = RanksOnThisMachine(plan.call.placement) == options.ranks;
  plan.call.as_root = geteuid() == 0;
  plan.call.quiet = !options.verbose;

  SayLaunch(
      base::WriteLaunchEnv(
          {.job = RandomJobName(),
           .version = base::kVersion,
           .hosts = plan.call.placement,
           .terminal_columns = TerminalColumns()}),
      plan);
  std::vector<std::string> names = options.exported;
  if (!plan.call.only_this_machine)
    for (const std::string& name : ForwardedNames(plan.environment)) names.push_back(name);
  for (const std::string& name : names)
    if (std::find(plan.call.exported.begin(), plan.call.exported.end(), name) ==
        plan.call.exported.end())
      plan.call.exported.push_back(name);
  return plan;
}

std::string FolderBase() {
  const std::string base = base::ProcessEnv("TMPDIR").value_or("");
  return base.empty() ? "/tmp" : base;
}

int PrintPlan(Plan plan) {
  plan.call.folder = JobFolder::Pattern(FolderBase());
  std::cout << ShellLine(MpirunArgv(plan.call)) << '\n';
  int rank = 0;
  for (const HostSlots& host : plan.call.placement)
    for (int slot = 0; slot < host.slots; ++slot)
      std::cout << "rank " << rank++ << " -> " << host.name << '\n';
  return 0;
}

// mpirun itself was killed, or cannot be run: no rank is to blame.
Verdict JudgeDeadEngine(int wait_status) {
  return {
      static_cast<int>(ExitCode::kInternal),
      Text("mpirun was killed by ", SignalName(WTERMSIG(wait_status)), "; its ranks were ended")};
}

std::vector<ExitRecord> ExitRecords(
    const std::string& folder, const std::vector<base::FlightRecord>& flights) {
  std::vector<ExitRecord> records = ReadExitRecords(folder);
  for (ExitRecord& record : records) {
    for (const base::FlightRecord& flight : flights)
      if (flight.rank == record.rank) record.gave_up = flight.gave_up;
  }
  return records;
}

Verdict Judge(
    const JobEnd& end, const MpirunCall& call, const std::vector<base::FlightRecord>& flights) {
  if (end.interruption != 0)
    return {128 + end.interruption, Text("ended by ", SignalName(end.interruption))};
  if (WIFSIGNALED(end.wait_status)) return JudgeDeadEngine(end.wait_status);
  if (WEXITSTATUS(end.wait_status) == 0) return {0, ""};
  return JudgeFailure(
      ExitRecords(call.folder, flights), WEXITSTATUS(end.wait_status), call.placement,
      RanksOnThisMachine(call.placement));
}

// The job's own failure counts for more than that of the file.
int WriteRecords(ResultFile& file, const std::string& json, int exit_code) {
  try {
    file.Write(json);
  } catch (const LaunchError& error) {
    Say(error.what());
    if (exit_code == 0) return static_cast<int>(error.code());
  }
  return exit_code;
}

int Run(Plan plan, const Options& options) {
  JobFolder folder(FolderBase());
  plan.call.folder = folder.path();
  std::optional<ResultFile> record_file;
  if (!options.flight_record.empty()) record_file.emplace(options.flight_record);
  const std::vector<std::string> argv = MpirunArgv(plan.call);
  if (options.verbose) Say(ShellLine(argv));

  Supervisor supervisor;
  folder.SetUser(supervisor.Start(argv, plan.environment));
  const JobEnd end = supervisor.WaitForEnd(folder.keeper());
  folder.SetUser(0);

  const int ranks = base::RankCount(plan.call.placement);
  const std::vector<base::FlightRecord> flights =
      ReadFlightRecords(FlightFolder(folder.path()), ranks);
  const Verdict verdict = Judge(end, plan.call, flights);
  if (!verdict.message.empty()) {
    Say(verdict.message);
    if (const std::string summary = FlightSummary(flights); !summary.empty()) Say(summary);
  }
  if (!record_file) return verdict.exit_code;
  return WriteRecords(*record_file, FlightJson(flights, ranks), verdict.exit_code);
}

int Main(const std::vector<std::string>& arguments) {
  const Options options = ParseCommandLine(arguments);
  switch (options.action) {
    case Action::kHelp: std::cout << HelpText(); return 0;
    case Action::kVersion: std::cout << "dtrun " << base::kVersion << '\n'; return 0;
    case Action::kDryRun: return PrintPlan(MakePlan(options));
    case Action::kRun: return Run(MakePlan(options), options);
  }
  return static_cast<int>(ExitCode::kInternal);
}

}  // namespace
}  // namespace dtrun::launcher

int main(int argc, char** argv) {
  using namespace dtrun::launcher;
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
