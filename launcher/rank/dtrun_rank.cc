// dtrun_rank +PROGRAM +ARGUMENT...: what mpirun or dtrun_local starts for each rank. It gives the
// rank its CPUs and its number of threads, runs the program as its child in the same process group,
// tells the agent of its host how it ended, and then ends the same way itself, so that mpirun sees
// the truth. What the program writes goes to the agent, not to mpirun, which would mix it with that
// of other ranks.
//
// If mpirun dies, this dies; if this dies, the program does.

#include <fcntl.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <termios.h>
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
#include "launcher/rank/rank_link.h"
#include "launcher/rank/wrapped_program.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {

/// The two ends of what a program writes to.
struct OutputPipe {
  int read = -1;
  int write = -1;
};

/// A terminal of `columns` columns (where the system has one to give; else a pipe), so that
/// programs write line by line as they do for a person. It changes no byte. Throws LaunchError
/// kInternal.
OutputPipe MakeTerminal(int columns);

/// Throws LaunchError kInternal.
OutputPipe MakePipe();

namespace {

using base::ProcessEnv;
using base::Text;

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
  sched_setaffinity(0, CPU_ALLOC_SIZE(count), set);  // slower, not wrong, where it is refused
  CPU_FREE(set);
}

// --threads decides, else a user who sets OMP_NUM_THREADS, of which the first number counts: "4,2"
// is for nested teams.
int DecideThreads(int said, int planned) {
  if (said > 0) return said;
  const std::string wish = ProcessEnv("OMP_NUM_THREADS").value_or("");
  const auto threads = base::ParseInteger(wish.substr(0, wish.find(',')));
  return threads && *threads > 0 && *threads < 1'000'000 ? static_cast<int>(*threads) : planned;
}

// Open MPI hands the rank both the folder of mpirun and the general one that it implies, and then
// MPI_Init refuses to see both. That mpirun prints no trace when it crashes is mpirun's alone.
void ForgetParametersOfMpirun() {
  unsetenv("OMPI_MCA_orte_local_tmpdir_base");
  if (ProcessEnv("OMPI_MCA_opal_signal") == "") unsetenv("OMPI_MCA_opal_signal");
}

// Of this user, with room for the files of as many ranks as Open MPI makes them.
bool HasRoom(const std::string& folder, int ranks) {
  constexpr uint64_t kBytesOfRank = 5 << 20;
  struct stat status;
  struct statvfs system;
  return lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && statvfs(folder.c_str(), &system) == 0 &&
         system.f_bavail * system.f_frsize >= kBytesOfRank * static_cast<uint64_t>(ranks);
}

// Where dtrun cleans up, even after a killed mpirun: in memory, else on disk, where ranks that have
// no other network than the loopback reach each other as well. The parameter has a name in Open MPI
// 4 and another in 5.
void KeepSharedMemoryIn(const std::string& memory, const std::string& disk, int ranks) {
  const std::string& folder = HasRoom(memory, ranks) ? memory : disk;
  if (!HasRoom(folder, ranks)) return;
  setenv("OMPI_MCA_btl_vader_backing_directory", folder.c_str(), 0);
  setenv("OMPI_MCA_btl_sm_backing_directory", folder.c_str(), 0);
}

// Programs of other frameworks find themselves by these. What is left of an outer job, or of a
// shell in which somebody has tried out another launcher, would make every rank the same one.
void SetRankVariables(const base::LaunchEnv& launch, int rank) {
  const int port =
      static_cast<int>(base::ParseInteger(ProcessEnv(kMasterPort).value_or("")).value_or(0));
  for (const auto& [name, value] :
       RankVariables(launch.hosts, rank, ProcessEnv(kMasterAddress).value_or(""), port))
    SetEnv(name, value);
}

void ReportCpus(const base::LaunchEnv& launch, int rank, const CpuPlan& plan, int threads) {
  const std::string& host =
      launch.hosts[static_cast<size_t>(base::HostOfRank(launch.hosts, rank))].name;
  const std::string line = Text(
      "dtrun: rank ", rank, " on ", host, ": ", CpusInWords(plan.pinned), ", ", threads,
      threads == 1 ? " thread\n" : " threads\n");
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void PrepareRank(base::LaunchEnv launch, const std::string& folder, int rank) {
  const CpuPlan plan = BindCpus(
      AllowedCpus(), CpuQuota(ReadFileOfSystem), ParseBind(launch.bind).value_or(Bind::kAuto),
      launch.rank >= 0 ? rank : EngineSays("OMPI_COMM_WORLD_LOCAL_RANK", 0),
      launch.rank >= 0 ? launch.hosts[0].slots : EngineSays("OMPI_COMM_WORLD_LOCAL_SIZE", 1));
  Pin(plan.pinned);
  const int threads = DecideThreads(launch.threads, plan.threads);
  if (launch.threads > 0 || !ProcessEnv("OMP_NUM_THREADS"))
    SetEnv("OMP_NUM_THREADS", Text(threads));
  // Ranks that wait in turns for one CPU would otherwise burn each other's time.
  if (plan.oversubscribed && !ProcessEnv("OMPI_MCA_mpi_yield_when_idle"))
    SetEnv("OMPI_MCA_mpi_yield_when_idle", "1");
  if (launch.verbose) ReportCpus(launch, rank, plan, threads);
  SetRankVariables(launch, rank);
  launch.threads = threads;
  launch.shutdown_note = ShutdownNote(folder, rank);
  launch.flight_folder = FlightFolder(folder);
  if (launch.servers > 0) {
    launch.rank = rank;  // nobody asks MPI in such a job
    if (launch.hosts.size() > 1) launch.secret_file = SecretFile(folder);
  }
  for (const auto& [name, value] : base::WriteLaunchEnv(launch)) SetEnv(name, value);
}

// Has been a rank among others, and has not said goodbye. mpirun notices that of MPI's ranks.
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
  signal(NoticeSignal(), SIG_IGN);  // as the program will find it
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == 1) return static_cast<int>(ExitCode::kInternal);  // mpirun is gone already
  const bool by_mpi = launch->rank < 0;
  const int rank = by_mpi ? EngineSays("OMPI_COMM_WORLD_RANK", 0) : launch->rank;
  const OutputPipe out = MakeTerminal(launch->terminal_columns), err = MakePipe();
  RankLink link(launch->job, base::HostOfRank(launch->hosts, rank), rank, out.read, err.read);
  close(out.read);
  close(err.read);
  ForgetParametersOfMpirun();
  KeepSharedMemoryIn(
      MemoryFolder(link.folder()), link.folder(),
      launch->hosts[static_cast<size_t>(base::HostOfRank(launch->hosts, rank))].slots);
  PrepareRank(*launch, link.folder(), rank);
  const bool expendable = launch->servers > 0 && rank >= launch->servers;
  const int code = RunProgram(UnmarkWords(arguments), link, out.write, err.write, expendable);
  const bool mpi_notices = by_mpi && launch->servers == 0;
  return code == 0 && !mpi_notices && !expendable && LeftEarly(*launch, link.folder(), rank)
             ? kLeftCode
             : code;
}

}  // namespace

OutputPipe MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw LaunchError(
        ExitCode::kInternal, base::Text("cannot make a pipe: ", std::strerror(errno)));
  return {ends[0], ends[1]};
}

OutputPipe MakeTerminal(int columns) {
  winsize size = {};
  size.ws_col = static_cast<unsigned short>(columns > 0 ? columns : 80);
  size.ws_row = 24;
  OutputPipe terminal;
  if (openpty(&terminal.read, &terminal.write, nullptr, nullptr, &size) != 0) return MakePipe();
  termios mode = {};
  tcgetattr(terminal.write, &mode);
  cfmakeraw(&mode);
  tcsetattr(terminal.write, TCSANOW, &mode);
  fcntl(terminal.read, F_SETFD, FD_CLOEXEC);
  fcntl(terminal.write, F_SETFD, FD_CLOEXEC);
  return terminal;
}

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
