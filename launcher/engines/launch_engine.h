#ifndef DTRUN_LAUNCHER_ENGINES_LAUNCH_ENGINE_H_
#define DTRUN_LAUNCHER_ENGINES_LAUNCH_ENGINE_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/launch_env.h"
#include "launcher/protocol/exit_record.h"
#include "launcher/support/environment.h"

namespace dtrun::launcher {

class LaunchEngine;

/// How dtrun and the engine reach other hosts.
struct Reach {
  bool by_ssh = true;             ///< false: the user has configured another remote shell
  std::string remote_shell = {};  ///< that remote shell; it gets a host and the path of a program
  /// A shell on the host reads that path, so it needs quotes. False: the remote shell is the
  /// engine's own, and its processes are steps (kIsStep of protocol/frame.h).
  bool parses_command = true;
  /// The hosts that one process reaches if there are more; those reach the others. 0: any number.
  size_t fanout = 0;
  int ssh_port = 0;  ///< 0: from the user's ssh configuration
  std::string ssh_identity = {};
  std::vector<std::string> ssh_arguments = {};  ///< more, from the user (plm_rsh_args)
  int connect_timeout_s = 60;
  int host_timeout_s = 30;                 ///< a host unreachable for this long is lost
  std::vector<std::string> networks = {};  ///< IPv4 networks to use; empty: Open MPI chooses
  std::vector<std::string> networks_left_out = {};  ///< networks that it must not choose
};

/// The parameters of an engine's call.
struct EngineCall {
  const LaunchEngine* engine = nullptr;
  std::string file;                ///< path of the engine's program
  std::string wrapper;             ///< path of dtrun_rank, the same on all hosts
  std::string reacher;             ///< path of dtrun_reach on all hosts, if `recovers`
  std::string folder;              ///< of the job, on this machine
  std::string daemon = {};         ///< path of dtrun_daemon, the same on all hosts
  std::string listener = {};       ///< path of dtrun_listen.so, the same on all hosts
  std::string remote_folder = {};  ///< name of the job's folder on other hosts
  /// IPv4 networks in which the engine and its daemons listen; empty: at all addresses of the host.
  std::vector<std::string> listen_in = {};
  /// MPI's transports (the parameter "btl") without TCP; "": MPI chooses.
  std::string transports = {};
  std::vector<base::HostSlots> placement;  ///< hosts with the slots in use
  std::vector<bool> on_this_machine;       ///< by host of the placement
  std::vector<std::string> exported;       ///< names of variables that other hosts get
  std::vector<std::string> mpi_args;       ///< from the user; they replace dtrun's options
  bool only_this_machine = false;          ///< the placement has no other host
  Reach reach;                             ///< for the other hosts
  bool as_root = false;
  /// The job goes on after it loses a rank, or the engine's daemon on another host.
  bool recovers = false;
  bool restarts = false;  ///< lost ranks are started again: see LaunchEngine::starts_again
  bool quiet = true;      ///< the engine prints no messages of its own
  std::vector<std::string> program;
};

/// The kind of a line that an engine's program writes to its stderr.
enum class EngineLine {
  kWords,        ///< for people
  kIdleWarning,  ///< a warning without a problem
  kEvent,        ///< an event that the program has logged, for Explain
  kFence,        ///< begins a message without a problem, of several lines, and the next one ends it
};

/// A way to start the ranks of a job. Each engine is a row of LaunchEngines(); no code outside this
/// folder names an engine. Stateless and thread-safe.
class LaunchEngine {
 public:
  virtual ~LaunchEngine() = default;

  /// The value of --launcher: "mpirun".
  virtual std::string name() const = 0;
  /// A remark in the help about an engine without MPI: "one host". "": the engine starts MPI's
  /// ranks.
  virtual std::string summary() const = 0;
  /// The name of the program that dtrun starts, for messages: "dtrun_local".
  virtual std::string program() const = 0;
  /// Whether the program is part of dtrun.
  virtual bool is_own() const = 0;
  /// Whether the ranks find each other without MPI, by the rank that the engine gives them
  /// (LaunchEnv::rank) and, over several hosts, by the job's secret (LaunchEnv::secret_file).
  virtual bool joins_by_secret() const = 0;
  /// Whether the ranks of this engine cannot be replaced one by one: after a loss, dtrun ends the
  /// engine with all its ranks and calls it again (EngineCall::restarts). Otherwise the agents
  /// start each lost rank again, which needs joins_by_secret().
  virtual bool starts_again() const = 0;
  /// Where the user finds more if the engine fails: "--verbose shows Open MPI's messages". "": no
  /// such place.
  virtual std::string more_words() const = 0;
  /// Whether the engine reports a lost rank as a failure even if the job goes on without the rank.
  virtual bool blames_lost_ranks() const = 0;

  /// The program by which dtrun and this engine reach other hosts, with its arguments: it gets a
  /// host and the path of a program there, without quotes. "": ssh, or the user's remote shell.
  virtual std::string remote_shell() const = 0;

  /// Whether the program exists, and not only another one of its name. `path` is $PATH.
  virtual bool IsInstalled(const std::string& path) const = 0;
  /// The engine for the version of the program that is installed; this one, if all are alike.
  virtual const LaunchEngine& VersionIn(const std::string& path) const;
  /// The path of the program. `path` is $PATH. Throws LaunchError kUnavailable or kInternal.
  virtual std::string Find(const std::string& path) const = 0;

  /// Why the engine cannot start this job; "": it can. `call` has a placement and arguments, but no
  /// paths.
  virtual std::string Probe(const EngineCall& call) const = 0;

  /// The words of the command, with the program's path first. They contain no value of an
  /// environment variable. Pure. Throws UsageError for a host name that the engine cannot use.
  virtual std::vector<std::string> Argv(const EngineCall& call) const = 0;

  /// The path that other hosts need for the engine's daemon; "": none, or not known.
  virtual std::string Daemon(const EngineCall& call) const = 0;

  /// Adds the variables that the engine's program needs. Pure.
  virtual void Prepare(const EngineCall& call, Variables& environment) const = 0;

  /// Removes variables that an outer job of another engine has set. Pure.
  virtual void CleanEnvironment(Variables& environment) const = 0;

  /// The kind of a line of the program's stderr. Pure.
  virtual EngineLine Sort(std::string_view line) const = 0;

  /// Explains an exit code of the program if no record of a rank does. `events`: the lines of kind
  /// EngineLine::kEvent. Pure.
  virtual EngineEnd Explain(
      int exit_code, const std::vector<base::HostSlots>& hosts,
      const std::string& events = "") const = 0;
};

/// All engines. The first is the default.
const std::vector<const LaunchEngine*>& LaunchEngines();

/// The engine of this name; nullptr: none.
const LaunchEngine* FindLaunchEngine(const std::string& name);

/// The engine for a job of a user who names none: the first that is installed and can start the
/// job, or the default if none is. `call` is as for Probe, `path` is $PATH. With restarts, engines
/// that replace lost ranks one by one come first.
const LaunchEngine& ChooseLaunchEngine(const EngineCall& call, const std::string& path);

/// The arguments of ssh that come before the host.
std::vector<std::string> SshArguments(const Reach& reach);

/// The command that runs a program on a host. The caller appends SshHost(host) and
/// RemotePath(reach, file).
std::vector<std::string> RemoteShell(const Reach& reach);
/// Whether the last words of a remote shell mean that the host may answer later: ssh does not find
/// its name or its sshd yet. Pure.
bool MayAnswerLater(std::string_view words);
/// Whether these words are ssh's about a connection that it could not make. An engine's own remote
/// shell may stay although its ssh has ended. Pure.
bool IsFailureOfSsh(std::string_view words);
/// The path of a program for RemoteShell: in shell quotes if a shell reads it.
std::string RemotePath(const Reach& reach, const std::string& file);
/// The host's name for ssh: IPv6 addresses lose their brackets.
std::string SshHost(const std::string& name);

/// An engine may search the whole command line for its own options (mpirun: ":", "--tune", "-am"),
/// including the program's arguments. MarkWords therefore puts a mark before each word of the
/// program. The wrapper removes the marks.
std::vector<std::string> MarkWords(const std::vector<std::string>& words);
std::vector<std::string> UnmarkWords(const std::vector<std::string>& words);

/// Appends `more` to `words`.
void Append(std::vector<std::string>& words, const std::vector<std::string>& more);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_ENGINES_LAUNCH_ENGINE_H_
