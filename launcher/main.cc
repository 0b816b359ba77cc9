// dtrun: plans (command line, hosts, placement, mpirun's command), then runs the job.

#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "base/text.h"
#include "base/version.h"
#include "launcher/engine.h"
#include "launcher/hosts.h"
#include "launcher/job.h"
#include "launcher/job_folder.h"
#include "launcher/launch_error.h"
#include "launcher/mpirun.h"
#include "launcher/options.h"
#include "launcher/program.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;

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

// What is left of a line for the ranks, beside what stands in front of it.
int TerminalColumns(const OutputOptions& output) {
  constexpr int kTagColumns = 20, kStampColumns = 24, kFewest = 20;
  if (!isatty(STDOUT_FILENO)) return 0;
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  const int taken =
      (output.tag == Tag::kNone ? 0 : kTagColumns) + (output.timestamps ? kStampColumns : 0);
  return std::max(kFewest, (known ? size.ws_col : 80) - taken);
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

// Removes what an outer dtrun said and adds what this one says.
void SayLaunch(const base::Environment& launch, JobPlan& plan) {
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

JobPlan MakePlan(const Options& options) {
  JobPlan plan;
  const std::string path = base::ProcessEnv("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  plan.environment = OwnEnvironment();
  plan.call.placement = PlaceRanks(options.hosts, options.ranks);
  for (const std::string& name : options.exported)
    if (!Has(plan.environment, name))
      throw UsageError(Text("-x ", name, ": this variable is not set"));
  plan.call.program = options.program;
  plan.call.program.front() = FindProgram(options.program.front(), path);
  plan.call.mpirun = FindMpirun(path);
  plan.call.wrapper = FindHelper("dtrun_rank");
  plan.agent = FindHelper("dtrun_agent");
  plan.call.mpi_args = options.mpi_args;
  const std::vector<bool> here = OnThisMachine(plan.call.placement);
  plan.call.only_this_machine = std::all_of(here.begin(), here.end(), [](bool is) { return is; });
  plan.call.as_root = geteuid() == 0;
  plan.call.quiet = !options.verbose;
  plan.job = RandomJobName();
  plan.flight_record = options.flight_record;
  plan.output = options.output;
  plan.verbose = options.verbose;

  SayLaunch(
      base::WriteLaunchEnv(
          {.job = plan.job,
           .version = base::kVersion,
           .hosts = plan.call.placement,
           .terminal_columns = TerminalColumns(options.output)}),
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

int PrintPlan(JobPlan plan) {
  plan.call.folder = JobFolder::Pattern(FolderBase());
  std::cout << ShellLine(MpirunArgv(plan.call)) << '\n';
  int rank = 0;
  for (const HostSlots& host : plan.call.placement)
    for (int slot = 0; slot < host.slots; ++slot)
      std::cout << "rank " << rank++ << " -> " << host.name << '\n';
  return 0;
}

int Main(const std::vector<std::string>& arguments) {
  const Options options = ParseCommandLine(arguments);
  switch (options.action) {
    case Action::kHelp: std::cout << HelpText(); return 0;
    case Action::kVersion: std::cout << "dtrun " << base::kVersion << '\n'; return 0;
    case Action::kDryRun: return PrintPlan(MakePlan(options));
    case Action::kRun: return RunJob(MakePlan(options));
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
