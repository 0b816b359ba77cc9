#include "launcher/job.h"

#include <sys/wait.h>

#include <iostream>
#include <optional>
#include <vector>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/exit_record.h"
#include "launcher/flight_report.h"
#include "launcher/job_folder.h"
#include "launcher/launch_error.h"
#include "launcher/mpirun.h"
#include "launcher/quoting.h"
#include "launcher/result_file.h"
#include "launcher/supervisor.h"

namespace dtrun::launcher {
namespace {

using base::Text;

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

// The user's word, or a limit he set: no rank is to blame either.
Verdict JudgeEnded(const JobEnd& end, const Options& options) {
  if (end.interruption != 0)
    return {128 + end.interruption, Text("ended by ", SignalName(end.interruption))};
  if (end.limit == JobEnd::Limit::kWhole)
    return {
        static_cast<int>(ExitCode::kTimeout),
        Text("ended after ", options.timeout_s, " s (--timeout)")};
  return {
      static_cast<int>(ExitCode::kUnavailable),
      Text(
          "not all ranks had started after ", options.start_timeout_s,
          " s (--start-timeout); --verbose shows what Open MPI says")};
}

Verdict Judge(
    const JobEnd& end, const Plan& plan, const Options& options,
    const std::vector<base::FlightRecord>& flights) {
  if (end.interruption != 0 || end.limit != JobEnd::Limit::kNone) return JudgeEnded(end, options);
  if (WIFSIGNALED(end.wait_status)) return JudgeDeadEngine(end.wait_status);
  if (WEXITSTATUS(end.wait_status) == 0) return {0, ""};
  return JudgeFailure(
      ExitRecords(plan.call.folder, flights), WEXITSTATUS(end.wait_status), plan.call.placement,
      plan.ranks_here);
}

// Each rank on this machine makes a record when it starts; Open MPI starts none before it has
// reached all hosts. A job without a rank here is only bounded by ssh's own time limit.
TimeLimits LimitsOf(const Options& options, const Plan& plan) {
  TimeLimits limits = {.whole_s = options.timeout_s};
  if (plan.ranks_here == 0) return limits;
  limits.start_s = options.start_timeout_s;
  limits.has_started = [folder = plan.call.folder, ranks = plan.ranks_here] {
    return static_cast<int>(ReadExitRecords(folder).size()) >= ranks;
  };
  return limits;
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

}  // namespace

// The words may hold line breaks; what is said stays one line.
void Say(const std::string& message) {
  std::string line;
  for (char c : message) line += c == '\n' ? ' ' : c;
  std::cerr << Text("dtrun: ", line, '\n') << std::flush;
}

std::string FolderBase() {
  const std::string base = base::ProcessEnv("TMPDIR").value_or("");
  return base.empty() ? "/tmp" : base;
}

int RunJob(Plan plan, const Options& options) {
  JobFolder folder(FolderBase());
  plan.call.folder = folder.path();
  std::optional<ResultFile> record_file;
  if (!options.flight_record.empty()) record_file.emplace(options.flight_record);
  const std::vector<std::string> argv = MpirunArgv(plan.call);
  if (options.verbose) Say(ShellLine(argv));

  Supervisor supervisor;
  folder.SetUser(supervisor.Start(argv, plan.environment));
  const JobEnd end = supervisor.WaitForEnd(folder.keeper(), LimitsOf(options, plan));
  folder.SetUser(0);

  const int ranks = base::RankCount(plan.call.placement);
  const std::vector<base::FlightRecord> flights =
      ReadFlightRecords(FlightFolder(folder.path()), ranks);
  const Verdict verdict = Judge(end, plan, options, flights);
  if (!verdict.message.empty()) {
    Say(verdict.message);
    if (const std::string summary = FlightSummary(flights); !summary.empty()) Say(summary);
  }
  if (!record_file) return verdict.exit_code;
  return WriteRecords(*record_file, FlightJson(flights, ranks), verdict.exit_code);
}

}  // namespace dtrun::launcher
