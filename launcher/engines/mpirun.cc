// The engine mpirun, and the verdict that follows from mpirun's stderr and exit code. With
// state_base_verbose, mpirun logs an event for each change of a process's state. The events name
// the rank that called MPI_Abort, the rank killed first and a lost daemon.

#include "launcher/engines/mpirun.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/engines/executables.h"
#include "launcher/hosts/hosts.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {

const LaunchEngine& MpirunEngine();

namespace {

using Words = std::vector<std::string>;

constexpr char kCrashTrace[] = "OMPI_MCA_opal_signal";  // signals that print a stack trace

constexpr int kDaemonLost = 205;  // mpirun's exit code after it has lost a daemon

// The mpirun in $PATH, whose Open MPI is known by its version.
int OpenMpiIn(const std::string& path) {
  const std::optional<std::string> mpirun = SearchPath("mpirun", path);
  if (!mpirun) return 0;
  // That of Open MPI 4 is a link to orterun, which need not run for this.
  std::error_code error;
  const auto file = std::filesystem::canonical(*mpirun, error);
  return file.filename() == "orterun" ? 4 : OpenMpiOf(MpirunVersion(*mpirun));
}

class Mpirun final : public LaunchEngine {
 public:
  explicit Mpirun(int open_mpi) : open_mpi_(open_mpi) {}

  std::string name() const override { return "mpirun"; }
  std::string summary() const override { return ""; }
  std::string remote_shell() const override { return ""; }
  std::string program() const override { return "mpirun"; }
  bool is_own() const override { return false; }
  bool joins_by_secret() const override { return false; }
  // Open MPI 4 ends the whole job when a process of it dies.
  bool starts_again() const override { return true; }
  std::string more_words() const override { return "--verbose shows Open MPI's messages"; }
  bool blames_lost_ranks() const override { return true; }

  bool IsInstalled(const std::string& path) const override { return OpenMpiIn(path) != 0; }
  const LaunchEngine& VersionIn(const std::string& path) const override;
  std::string Find(const std::string& path) const override { return FindMpirun(path); }
  std::string Probe(const EngineCall&) const override { return ""; }
  Words Argv(const EngineCall& call) const override { return MpirunArgv(call, open_mpi_); }
  // mpirun is started by its full path, so it expects its daemon in the same folder on other hosts.
  std::string Daemon(const EngineCall& call) const override {
    const auto is_prefix = [](const std::string& word) { return word.ends_with("prefix"); };
    if (call.daemon.empty() || std::any_of(call.mpi_args.begin(), call.mpi_args.end(), is_prefix))
      return "";
    const std::string daemon =
        std::filesystem::path(call.file).parent_path() / MpirunDaemon(open_mpi_);
    return access(daemon.c_str(), X_OK) == 0 ? daemon : "";
  }
  void Prepare(const EngineCall& call, Variables& environment) const override {
    if (open_mpi_ == 5 && ValueOf(environment, "HOME").empty())
      Set(environment, "HOME", HomeFolder());
    // dtrun reports a crash itself. The stack trace of mpirun does not explain the job's failure.
    if (call.quiet && !Has(environment, kCrashTrace)) Set(environment, kCrashTrace, "");
    // The loader splits LD_PRELOAD at blanks and colons.
    if (call.listen_in.empty() || call.listener.find_first_of(" :") != std::string::npos) return;
    const std::string others = ValueOf(environment, "LD_PRELOAD");
    Set(environment, "LD_PRELOAD",
        others.empty() ? call.listener : base::Text(call.listener, ':', others));
    Set(environment, "DTRUN_LISTEN_IN", base::Join(call.listen_in, ","));
  }
  void CleanEnvironment(Variables&) const override {}  // mpirun sets its variables anew

  // Warnings without a problem:
  //
  //   [h1:812] plm:rsh: Warning: setpgid(831,831) failed in parent with errno=Permission denied(13)
  //     Open MPI 5 writes plm:ssh. The ssh process has called exec before mpirun could put it into
  //     its own process group. The process puts itself there, too.
  //   [warn] Epoll MOD(1) on fd 27 failed. Old events were 6; ...: Bad file descriptor
  //     libevent learns late that an ended connection is closed.
  //
  // An event (state_base_verbose) of Open MPI 4, and of Open MPI 5, which has two lines for each:
  //
  //   [h1:812] [[4695,0],0] ACTIVATE PROC [[4695,1],1] STATE CALLED ABORT AT pmix_server_gen.c:198
  //   [h1:23] [prterun-h1-23@0,0] [17.24] ACTIVATE PROC [prterun-h1-23@1,1] STATE ABORTED BY SIGNAL
  //   [h1:23] [prterun-h1-23@0,0] [17.24] ACTIVATING PROC [prterun-h1-23@1,1] STATE ABORTED BY
  //
  // The messages of Open MPI 5, which no option silences, stand between two lines of dashes.
  EngineLine Sort(std::string_view line) const override {
    const auto has = [&](const char* words) { return line.find(words) != std::string_view::npos; };
    for (const char* event :
         {kProcess, "] ACTIVATE JOB ", "] ACTIVATING PROC ", "] ACTIVATING JOB "})
      if (has(event)) return EngineLine::kEvent;
    if (open_mpi_ == 5 && line.starts_with("-----")) return EngineLine::kFence;
    if (line.starts_with('\0')) return EngineLine::kIdleWarning;
    const bool idle = has("plm:rsh: Warning: setpgid(") || has("plm:ssh: Warning: setpgid(") ||
                      line.starts_with("[warn] Epoll ");
    return idle ? EngineLine::kIdleWarning : EngineLine::kWords;
  }

  EngineEnd Explain(
      int exit_code, const std::vector<base::HostSlots>& hosts,
      const std::string& events) const override {
    const int lost = LostDaemon(exit_code, events, static_cast<int>(hosts.size()));
    return {
        {static_cast<int>(ExitCode::kUnavailable),
         base::Text(
             "Open MPI could not start the job on ", HostList(hosts), " (mpirun ended with code ",
             exit_code, "); --verbose shows Open MPI's messages")},
        TellsOfLeft(events) ? " without MPI_Finalize; Open MPI then ended the job" : "",
        exit_code == kDaemonLost || (open_mpi_ == 5 && lost > 0) ? "Open MPI's daemon" : "",
        Unexplained(exit_code, hosts, events),
        First(events, kKilled, '1', base::RankCount(hosts)),
        lost};
  }

 private:
  static constexpr const char* kProcess = "] ACTIVATE PROC [";
  static constexpr const char* kAborts = " STATE CALLED ABORT ";
  static constexpr const char* kKilled = " STATE ABORTED BY SIGNAL ";
  static constexpr const char* kLeft = " STATE TERMINATED WITHOUT SYNC ";
  static constexpr const char* kUnreached = " STATE FAILED TO START ";
  static constexpr const char* kLost = " STATE COMMUNICATION FAILURE ";
  static constexpr const char* kDaemonsEnd = " STATE DAEMONS TERMINATED ";
  static constexpr const char* kJobEnds = " STATE NOTIFY COMPLETED ";  // Open MPI 5 alone
  static constexpr int kToldToEnd = 1;  // mpirun's exit code after SIGTERM, SIGINT or SIGHUP

  // The number of the event's process in its job: 7 for "[[4695,1],7]" and for
  // "[prterun-h1-23@1,7]". Job 0 holds the daemons, job 1 the ranks. -1: the process belongs to the
  // other job.
  static int NumberIn(std::string_view event, char job_number) {
    std::string_view process =
        event.substr(event.find(kProcess) + std::string_view(kProcess).size());
    const size_t job = process.find_first_of(process.starts_with('[') ? "," : "@");
    if (job == std::string_view::npos) return -1;
    process.remove_prefix(job + 1);
    const size_t comma = process.find(','), end = process.find(']', comma);
    if (comma == std::string_view::npos || end == std::string_view::npos ||
        process[0] != job_number)
      return -1;
    return static_cast<int>(
        base::ParseInteger(std::string(process.substr(comma + 1, end - comma - 1))).value_or(-1));
  }

  // Whether a rank may have ended without MPI_Finalize.
  static bool TellsOfLeft(const std::string& events) {
    return events.empty() || events.find(kLeft) != std::string::npos;
  }

  // The number of the first process with such an event; -1: none.
  static int First(const std::string& events, const char* state, char job_number, int count) {
    for (const std::string& event : base::Split(events, '\n')) {
      const int number = event.find(state) != std::string::npos ? NumberIn(event, job_number) : -1;
      if (number >= 0 && number < count) return number;
    }
    return -1;
  }

  // A daemon is lost if its connection to mpirun, or the ssh that leads to it, has ended. Later
  // events do not count: once a rank has failed, the job has ended or mpirun has told the daemons
  // to end, connections end normally. If a signal told mpirun to end, a connection may end before
  // mpirun has read the daemon's own event; only the exit code shows that.
  static int LostDaemon(int exit_code, const std::string& events, int hosts) {
    size_t end = events.size();
    for (const char* later : {kAborts, kKilled, kDaemonsEnd, kJobEnds})
      end = std::min(end, events.find(later));
    const std::string before = events.substr(0, end);
    const int lost = exit_code == kToldToEnd ? -1 : First(before, kLost, '0', hosts + 1);
    return std::max(lost > 0 ? lost : First(before, kUnreached, '0', hosts + 1), 0);
  }

  // After MPI_Abort, mpirun ends all ranks alike, so only an event names the caller.
  static Verdict Unexplained(
      int exit_code, const std::vector<base::HostSlots>& hosts, const std::string& events) {
    const int rank = First(events, kAborts, '1', base::RankCount(hosts));
    if (rank >= 0) {
      const std::string& host = hosts[static_cast<size_t>(base::HostOfRank(hosts, rank))].name;
      return {
          exit_code,
          base::Text("rank ", rank, " on ", host, " called MPI_Abort with code ", exit_code), rank,
          true};
    }
    const int internal = static_cast<int>(ExitCode::kInternal);
    if (exit_code == kToldToEnd)
      return {internal, "mpirun was told to end by a signal from outside; its ranks were ended"};
    return {
        internal, base::Text(
                      "mpirun ended the job with code ", exit_code,
                      " though no rank had failed; --verbose shows Open MPI's messages")};
  }

  int open_mpi_;
};

const LaunchEngine& Mpirun::VersionIn(const std::string& path) const {
  static const Mpirun five(5);
  return OpenMpiIn(path) == 5 ? five : MpirunEngine();
}

bool IsOwnFolder(const std::filesystem::path& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

}  // namespace

const LaunchEngine& MpirunEngine() {
  static const Mpirun engine(4);
  return engine;
}

std::string OwnSessionFolder() {
  return base::ProcessEnv("OMPI_MCA_orte_jobfam_session_dir").value_or("");
}

void RemoveSessionFolder(const std::string& folder) {
  const std::filesystem::path path = folder;
  const std::filesystem::path above = path.parent_path();
  if (!path.is_absolute() || !path.filename().string().starts_with("jf.") ||
      !above.filename().string().starts_with("ompi.") || !IsOwnFolder(above) || !IsOwnFolder(path))
    return;
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
  rmdir(above.c_str());  // another job may still use it
}

}  // namespace dtrun::launcher
