// Translates a job into an mpirun command line, and mpirun's stderr and exit code back into a
// verdict. With state_base_verbose, mpirun logs an event for each change of a process's state. The
// events name the rank that called MPI_Abort, the rank killed first and a lost daemon.

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
namespace {

using Words = std::vector<std::string>;

constexpr char kLoopback[] = "127.0.0.0/8";
constexpr char kCrashTrace[] = "OMPI_MCA_opal_signal";  // signals that print a stack trace

// Open MPI 4 splits "[::1]:2" at the wrong colon and asks ssh for the host "[".
std::string EngineHost(const std::string& name) {
  if (name == "[::1]") return "localhost";
  if (name.starts_with('['))
    throw UsageError(base::Text(
        "-H ", name, ": Open MPI takes no IPv6 addresses; give the host's name instead"));
  return name;
}

// With slot counts, mpirun fills the machine it runs on first, regardless of its place in the list.
// With "--map-by seq" mpirun takes one host per rank, in the order of the list.
std::vector<Words> HostOptions(const std::vector<HostSlots>& placement) {
  if (placement.size() == 1) {
    const std::string host = EngineHost(placement[0].name);
    return {{"-H", HostList({{host, placement[0].slots}})}, {"--map-by", "slot"}};
  }
  Words host_of_rank;
  for (const HostSlots& host : placement)
    host_of_rank.insert(host_of_rank.end(), static_cast<size_t>(host.slots), EngineHost(host.name));
  return {{"-H", base::Join(host_of_rank, ",")}, {"--map-by", "seq"}};
}

bool IsMca(const std::string& word) {
  return word == "--mca" || word == "-mca" || word == "--gmca" || word == "-gmca";
}

// mpirun refuses a repeated MCA parameter, so the user's value replaces dtrun's.
bool Sets(const Words& user, const Words& option) {
  for (size_t i = 0; i < user.size(); ++i) {
    if (user[i] == option[0] && !IsMca(option[0])) return true;
    if (IsMca(user[i]) && IsMca(option[0]) && i + 1 < user.size() && user[i + 1] == option[1])
      return true;
  }
  return false;
}

// TCP keepalive probes a silent host three times before the host counts as lost.
std::vector<Words> KeepAlive(int host_timeout_s) {
  constexpr int kProbes = 3;
  const int interval = std::max(1, host_timeout_s / 6);
  return {
      {"--mca", "oob_tcp_keepalive_time", base::Text(host_timeout_s - kProbes * interval)},
      {"--mca", "oob_tcp_keepalive_intvl", base::Text(interval)},
      {"--mca", "oob_tcp_keepalive_probes", base::Text(kProbes)},
  };
}

std::vector<Words> ReachOptions(const Reach& reach) {
  std::vector<Words> options = KeepAlive(reach.host_timeout_s);
  if (reach.by_ssh)
    options.push_back({"--mca", "plm_rsh_args", base::Join(SshArguments(reach), " ")});
  if (reach.networks.empty()) {
    // This is only for MPI's transport: for daemons, Open MPI tries one address after another.
    if (!reach.networks_left_out.empty())
      options.push_back({"--mca", "btl_tcp_if_exclude", base::Join(reach.networks_left_out, ",")});
    return options;
  }
  const std::string networks = base::Join(reach.networks, ",");
  options.push_back({"--mca", "oob_tcp_if_include", networks});
  options.push_back({"--mca", "btl_tcp_if_include", networks});
  return options;
}

std::string DaemonCommand(const EngineCall& call) {
  const std::string networks = base::Join(call.listen_in, ",");
  return base::Text(
      call.daemon, ' ', call.remote_folder, ' ', networks.empty() ? "-" : networks, " orted");
}

std::vector<Words> OwnOptions(const EngineCall& call) {
  std::vector<Words> options = {
      {"-np", base::Text(base::RankCount(call.placement))},
      {"--oversubscribe"},
      {"--bind-to", "none"},  // the wrapper binds, with the CPUs of its host
      {"--stdin", "none"},
      {"--mca", "orte_keep_fqdn_hostnames", "1"},
      {"--mca", "orte_local_tmpdir_base", call.folder},
      // Sets the time before SIGTERM and the time between SIGTERM and SIGKILL.
      {"--mca", "odls_base_sigkill_timeout", "0"},
      // A rank dies with the thread that forked it, so mpirun's main thread must fork it.
      {"--mca", "odls_base_num_threads", "0"},
      // Makes mpirun log which rank has called MPI_Abort (Sort). Its exit code does not tell.
      {"--mca", "state_base_verbose", "1"},
  };
  for (const Words& option : HostOptions(call.placement)) options.push_back(option);
  // Otherwise mpirun requires an ssh even without other hosts.
  if (call.only_this_machine) {
    options.push_back({"--mca", "plm", "isolated"});
    if (!call.transports.empty()) options.push_back({"--mca", "btl", call.transports});
    if (!call.listen_in.empty()) options.push_back({"--mca", "btl_tcp_if_include", kLoopback});
  } else {
    for (const Words& option : ReachOptions(call.reach)) options.push_back(option);
    // Open MPI splits the command at blanks.
    if (!call.daemon.empty() && call.daemon.find(' ') == std::string::npos)
      options.push_back({"--mca", "orte_launch_agent", DaemonCommand(call)});
  }
  if (call.recovers) {
    options.push_back({"--mca", "orte_enable_recovery", "1"});
    // Open MPI splits the command at blanks, and a list of commands at colons.
    if (call.reach.remote_shell.empty() && call.reacher.find_first_of(" :") == std::string::npos)
      options.push_back({"--mca", "plm_rsh_agent", call.reacher + " ssh"});
  }
  if (call.quiet) options.push_back({"-q"});
  if (call.as_root) options.push_back({"--allow-run-as-root"});
  for (const std::string& name : call.exported) options.push_back({"-x", name});
  return options;
}

}  // namespace

std::vector<std::string> MpirunArgv(const EngineCall& call) {
  Words argv = {call.file};
  for (const Words& option : OwnOptions(call))
    if (option[0] == "-x" || !Sets(call.mpi_args, option)) Append(argv, option);
  Append(argv, call.mpi_args);
  Append(argv, {call.wrapper});
  Append(argv, MarkWords(call.program));
  return argv;
}

// The mpirun of Open MPI 5, which is prterun, has other options.
bool IsSupportedMpirun(const std::string& version) {
  return version.starts_with("mpirun (Open MPI) 4.");
}

namespace {

constexpr int kDaemonLost = 205;  // mpirun's exit code after it has lost a daemon

class Mpirun final : public LaunchEngine {
 public:
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

  // The mpirun of Open MPI 4 is a link to orterun. Any other mpirun is run for its version.
  bool IsInstalled(const std::string& path) const override {
    const std::optional<std::string> mpirun = SearchPath(program(), path);
    if (!mpirun) return false;
    std::error_code error;
    const auto file = std::filesystem::canonical(*mpirun, error);
    return file.filename() == "orterun" || IsSupportedMpirun(MpirunVersion(*mpirun));
  }
  std::string Find(const std::string& path) const override { return FindMpirun(path); }
  std::string Probe(const EngineCall&) const override { return ""; }
  Words Argv(const EngineCall& call) const override { return MpirunArgv(call); }
  // mpirun is started by its full path, so it expects orted in the same folder on other hosts.
  std::string Daemon(const EngineCall& call) const override {
    const auto is_prefix = [](const std::string& word) { return word.ends_with("prefix"); };
    if (call.daemon.empty() || std::any_of(call.mpi_args.begin(), call.mpi_args.end(), is_prefix))
      return "";
    const std::string orted = std::filesystem::path(call.file).parent_path() / "orted";
    return access(orted.c_str(), X_OK) == 0 ? orted : "";
  }
  void Prepare(const EngineCall& call, Variables& environment) const override {
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
  //     The ssh process has called exec before mpirun could put it into its own process group. The
  //     process puts itself there, too.
  //   [warn] Epoll MOD(1) on fd 27 failed. Old events were 6; ...: Bad file descriptor
  //     libevent learns late that an ended connection is closed.
  //
  // An event (state_base_verbose):
  //
  //   [h1:812] [[4695,0],0] ACTIVATE PROC [[4695,1],1] STATE CALLED ABORT AT pmix_server_gen.c:198
  EngineLine Sort(std::string_view line) const override {
    const auto has = [&](const char* words) { return line.find(words) != std::string_view::npos; };
    if (has(kProcess) || has("] ACTIVATE JOB ")) return EngineLine::kEvent;
    const bool idle = has("plm:rsh: Warning: setpgid(") || line.starts_with("[warn] Epoll ");
    return idle ? EngineLine::kIdleWarning : EngineLine::kWords;
  }

  EngineEnd Explain(
      int exit_code, const std::vector<base::HostSlots>& hosts,
      const std::string& events) const override {
    return {
        {static_cast<int>(ExitCode::kUnavailable),
         base::Text(
             "Open MPI could not start the job on ", HostList(hosts), " (mpirun ended with code ",
             exit_code, "); --verbose shows Open MPI's messages")},
        TellsOfLeft(events) ? " without MPI_Finalize; Open MPI then ended the job" : "",
        exit_code == kDaemonLost ? "Open MPI's daemon" : "",
        Unexplained(exit_code, hosts, events),
        First(events, kKilled, '1', base::RankCount(hosts)),
        LostDaemon(exit_code, events, static_cast<int>(hosts.size()))};
  }

 private:
  static constexpr const char* kProcess = "] ACTIVATE PROC [[";
  static constexpr const char* kAborts = " STATE CALLED ABORT ";
  static constexpr const char* kKilled = " STATE ABORTED BY SIGNAL ";
  static constexpr const char* kLeft = " STATE TERMINATED WITHOUT SYNC ";
  static constexpr const char* kUnreached = " STATE FAILED TO START ";
  static constexpr const char* kLost = " STATE COMMUNICATION FAILURE ";
  static constexpr const char* kDaemonsEnd = " STATE DAEMONS TERMINATED ";
  static constexpr int kToldToEnd = 1;  // mpirun's exit code after SIGTERM, SIGINT or SIGHUP

  // The number of the event's process in its job: 7 for "[[4695,1],7]". Job 0 holds the daemons,
  // job 1 the ranks. -1: the process belongs to the other job.
  static int NumberIn(std::string_view event, char job_number) {
    const size_t begin = event.find(kProcess) + std::string_view(kProcess).size();
    const size_t job = event.find(',', begin), number = event.find("],", begin);
    if (job == std::string_view::npos || number == std::string_view::npos ||
        event[job + 1] != job_number)
      return -1;
    const size_t end = event.find(']', number + 2);
    return static_cast<int>(
        base::ParseInteger(std::string(event.substr(number + 2, end - number - 2))).value_or(-1));
  }

  // Whether a rank may have ended without MPI_Finalize. Open MPI 5 shows no events.
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
  // events do not count: once a rank has failed or mpirun has told the daemons to end, connections
  // end normally. If a signal told mpirun to end, a connection may end before mpirun has read the
  // daemon's own event; only the exit code shows that.
  static int LostDaemon(int exit_code, const std::string& events, int hosts) {
    size_t end = events.size();
    for (const char* later : {kAborts, kKilled, kDaemonsEnd})
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
};

bool IsOwnFolder(const std::filesystem::path& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

}  // namespace

const LaunchEngine& MpirunEngine() {
  static const Mpirun engine;
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
