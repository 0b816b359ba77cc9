// dtrun_rank +PROGRAM +ARGUMENT...: the wrapper that mpirun or dtrun_local starts for each rank. It
// binds the rank to its CPUs, sets its number of threads, and runs the program as its child in the
// same process group. It reports the end of the program to the agent of its host. Then it ends in
// the same way, so that mpirun sees the same end. The program's output goes to the agent: mpirun
// would mix it with the output of other ranks.
//
// If mpirun dies, the wrapper dies. If the wrapper dies, the program dies.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/flight_record.h"
#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/engines/launch_engine.h"
#include "launcher/plan/cpu_binding.h"
#include "launcher/plan/rank_environment.h"
#include "launcher/protocol/job_folder.h"
#include "launcher/rank/rank_wrapper.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {

namespace {

using base::ProcessEnv;
using base::Text;

constexpr int kTerminalRows = 24;

int EngineSays(const char* variable, int otherwise) {
  return static_cast<int>(
      base::ParseInteger(ProcessEnv(variable).value_or("")).value_or(otherwise));
}

void SetEnv(const std::string& name, const std::string& value) {
  setenv(name.c_str(), value.c_str(), 1);
}

void Pin(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  int highest = 0;
  for (int cpu : cpus) highest = std::max(highest, cpu);
  const size_t count = static_cast<size_t>(highest) + 1;
  cpu_set_t* set = CPU_ALLOC(count);
  CPU_ZERO_S(CPU_ALLOC_SIZE(count), set);
  for (int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), CPU_ALLOC_SIZE(count), set);
  sched_setaffinity(0, CPU_ALLOC_SIZE(count), set);  // if refused: slower, not wrong
  CPU_FREE(set);
}

// The number of threads: from --threads, otherwise from the user's OMP_NUM_THREADS, otherwise the
// planned one. Only the first number of OMP_NUM_THREADS counts: "4,2" is for nested teams.
int DecideThreads(int said, int planned) {
  if (said > 0) return said;
  const std::string wish = ProcessEnv("OMP_NUM_THREADS").value_or("");
  const auto threads = base::ParseInteger(wish.substr(0, wish.find(',')));
  return threads && *threads > 0 && *threads < 1'000'000 ? static_cast<int>(*threads) : planned;
}

// Open MPI gives the rank mpirun's folder and also the general one that follows from it. MPI_Init
// refuses both together. The setting that disables stack traces is only for mpirun.
void ForgetParametersOfMpirun() {
  unsetenv("OMPI_MCA_orte_local_tmpdir_base");
  if (ProcessEnv("OMPI_MCA_opal_signal") == "") unsetenv("OMPI_MCA_opal_signal");
}

// Whether `folder` belongs to this user and has room for the shared-memory files of `ranks` ranks.
bool HasRoom(const std::string& folder, int ranks) {
  constexpr uint64_t kBytesOfRank = 5 << 20;
  struct stat status;
  struct statvfs system;
  return lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && statvfs(folder.c_str(), &system) == 0 &&
         system.f_bavail * system.f_frsize >= kBytesOfRank * static_cast<uint64_t>(ranks);
}

// Puts Open MPI's shared memory where dtrun cleans up even after mpirun is killed: in memory,
// otherwise on disk. Even on disk, ranks without a network besides the loopback can reach each
// other. Open MPI 4 and 5 have different names for the parameter.
void KeepSharedMemoryIn(const std::string& memory, const std::string& disk, int ranks) {
  const std::string& folder = HasRoom(memory, ranks) ? memory : disk;
  if (!HasRoom(folder, ranks)) return;
  setenv("OMPI_MCA_btl_vader_backing_directory", folder.c_str(), 0);
  setenv("OMPI_MCA_btl_sm_backing_directory", folder.c_str(), 0);
}

// Programs of other frameworks find their rank in these variables. Values from an outer job or from
// another launcher would give every rank the same number.
void SetRankVariables(const base::LaunchEnv& launch, int rank) {
  const int port =
      static_cast<int>(base::ParseInteger(ProcessEnv(kMasterPort).value_or("")).value_or(0));
  for (const auto& [name, value] : RankVariables(
           launch.hosts, base::RankOf(launch, rank), ProcessEnv(kMasterAddress).value_or(""), port,
           {launch.servers, launch.evaluator}))
    SetEnv(name, value);
}

// The host of a rank that was started with launch number `rank`.
int HostIndexOf(const base::LaunchEnv& launch, int rank) {
  return base::HostOfRank(launch.hosts, base::RankOf(launch, rank));
}
const base::HostSlots& HostOf(const base::LaunchEnv& launch, int rank) {
  return launch.hosts[static_cast<size_t>(HostIndexOf(launch, rank))];
}

void ReportCpus(const base::LaunchEnv& launch, int rank, const CpuPlan& plan, int threads) {
  const std::string& host = HostOf(launch, rank).name;
  const std::string line = Text(
      "dtrun: rank ", rank, " on ", host, ": ", CpusInWords(plan.pinned), ", ", threads,
      threads == 1 ? " thread\n" : " threads\n");
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

// The place of a rank among the ranks of its host.
struct LocalPlace {
  int rank;
  int count;
};

LocalPlace LocalPlaceOf(const base::LaunchEnv& launch, int rank) {
  if (launch.rank < 0)
    return {
        EngineSays("OMPI_COMM_WORLD_LOCAL_RANK", 0), EngineSays("OMPI_COMM_WORLD_LOCAL_SIZE", 1)};
  const auto host = static_cast<size_t>(HostIndexOf(launch, rank));
  int local = base::RankOf(launch, rank);
  for (size_t before = 0; before < host; ++before) local -= launch.hosts[before].slots;
  return {local, launch.hosts[host].slots};
}

// The number of the agent that serves this rank.
int AgentOf(const base::LaunchEnv& launch, int rank) {
  if (launch.agent >= 0) return launch.agent;
  const int host = HostIndexOf(launch, rank);
  return launch.agents.empty() ? host : launch.agents[static_cast<size_t>(host)];
}

// The launch number of this process. MPI knows only its rank.
int NumberOf(const base::LaunchEnv& launch) {
  if (launch.rank >= 0) return launch.rank;
  const int rank = EngineSays("OMPI_COMM_WORLD_RANK", 0);
  return launch.members.empty() ? rank : launch.members.at(static_cast<size_t>(rank));
}

void PrepareRank(base::LaunchEnv launch, const std::string& folder, int rank) {
  const LocalPlace place = LocalPlaceOf(launch, rank);
  const CpuPlan plan = BindCpus(
      AllowedCpus(), CpuQuota(ReadFileOfSystem), ParseBind(launch.bind).value_or(Bind::kAuto),
      place.rank, place.count);
  Pin(plan.pinned);
  const int threads = DecideThreads(launch.threads, plan.threads);
  if (launch.threads > 0 || !ProcessEnv("OMP_NUM_THREADS"))
    SetEnv("OMP_NUM_THREADS", Text(threads));
  // Ranks that share a CPU would otherwise waste each other's time by busy waiting.
  if (plan.oversubscribed && !ProcessEnv("OMPI_MCA_mpi_yield_when_idle"))
    SetEnv("OMPI_MCA_mpi_yield_when_idle", "1");
  if (launch.verbose) ReportCpus(launch, rank, plan, threads);
  SetRankVariables(launch, rank);
  launch.threads = threads;
  launch.shutdown_note = ShutdownNote(folder, rank);
  launch.flight_folder = FlightFolder(folder);
  if (launch.servers > 0) launch.rank = rank;  // such a job does not ask MPI
  if (launch.starts_again) launch.kept_state = KeptStateFile(folder);
  if (launch.restarts) launch.epoch_file = EpochPath(folder, AgentOf(launch, rank));
  if (launch.rank >= 0 && access(SecretFile(folder).c_str(), R_OK) == 0)
    launch.secret_file = SecretFile(folder);
  for (const auto& [name, value] : base::WriteLaunchEnv(launch)) SetEnv(name, value);
}

// Whether the rank joined a job of several ranks and ended without Shutdown. For ranks of MPI,
// mpirun notices this.
bool LeftEarly(const base::LaunchEnv& launch, const std::string& folder, int rank) {
  return base::RankCount(launch.hosts) > 1 &&
         access(base::FlightFile(FlightFolder(folder), rank).c_str(), F_OK) == 0 &&
         access(ShutdownNote(folder, rank).c_str(), F_OK) != 0;
}

int Main(const std::vector<std::string>& arguments) {
  const std::optional<base::LaunchEnv> launch = base::ReadLaunchEnv(ProcessEnv);
  if (arguments.empty() || !launch) {
    std::fputs("dtrun: dtrun_rank is started by dtrun, not by hand\n", stderr);
    return static_cast<int>(ExitCode::kUsage);
  }
  signal(NoticeSignal(), SIG_IGN);  // the program inherits this
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == 1) return static_cast<int>(ExitCode::kInternal);  // mpirun is gone
  const bool by_mpi = launch->rank < 0;
  const int rank = NumberOf(*launch);
  const OutputPipe out = MakeTerminal(launch->terminal_columns, kTerminalRows), err = MakePipe();
  RankLink link(launch->job, AgentOf(*launch, rank), rank, out.read, err.read);
  close(out.read);
  close(err.read);
  ForgetParametersOfMpirun();
  KeepSharedMemoryIn(MemoryFolder(link.folder()), link.folder(), HostOf(*launch, rank).slots);
  PrepareRank(*launch, link.folder(), rank);
  const bool expendable = launch->restarts || (launch->servers > 0 && rank >= launch->servers);
  const int code = RunProgram(UnmarkWords(arguments), link, out.write, err.write, expendable);
  const bool mpi_notices = by_mpi && launch->servers == 0;
  return code == 0 && !mpi_notices && !expendable && LeftEarly(*launch, link.folder(), rank)
             ? kLeftCode
             : code;
}

}  // namespace

}  // namespace dtrun::launcher

int main(int argc, char** argv) {
  try {
    return dtrun::launcher::Main({argv + 1, argv + argc});
  } catch (const dtrun::launcher::LaunchError& error) {
    std::fprintf(stderr, "dtrun: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrun: %s\n", error.what());
    return static_cast<int>(dtrun::launcher::ExitCode::kInternal);
  }
}
