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

/// The way to other hosts.
struct Reach {
  bool by_ssh = true;  ///< the user has put nothing in ssh's place
  std::string remote_shell =
      {};            ///< what stands there instead, which is given a host and a command
  int ssh_port = 0;  ///< 0: as the user's ssh configuration says
  std::string ssh_identity = {};
  int connect_timeout_s = 60;
  int host_timeout_s = 30;                          ///< a host out of reach for this long is lost
  std::vector<std::string> networks = {};           ///< IPv4, to use; empty: Open MPI chooses
  std::vector<std::string> networks_left_out = {};  ///< then it leaves these out
};

/// All that decides how an engine is called.
struct EngineCall {
  const LaunchEngine* engine = nullptr;
  std::string file;                ///< of the engine's program
  std::string wrapper;             ///< file of dtrun_rank, the same on all hosts
  std::string reacher;             ///< file of dtrun_reach, likewise, if it recovers
  std::string folder;              ///< of the job, on this machine
  std::string daemon = {};         ///< file of dtrun_daemon, the same on all hosts
  std::string listener = {};       ///< file of dtrun_listen.so, likewise
  std::string remote_folder = {};  ///< name of the job's folder on other hosts
  /// Where the engine and its daemons listen: IPv4 networks; none: at all addresses of their host.
  std::vector<std::string> listen_in = {};
  /// The MPI's transports (its parameter "btl") without TCP; "": it chooses.
  std::string transports = {};
  std::vector<base::HostSlots> placement;  ///< hosts with the slots in use
  std::vector<std::string> exported;       ///< names of the variables that other hosts get
  std::vector<std::string> mpi_args;       ///< the user's; they replace dtrun's own
  bool only_this_machine = false;          ///< no other host is in the placement
  Reach reach;                             ///< how the other hosts are reached
  bool as_root = false;
  bool recovers = false;  ///< ranks go on when one is lost, or the engine's daemon of another host
  bool quiet = true;      ///< the engine keeps its own messages to itself
  std::vector<std::string> program;
};

/// What a line is that an engine's program writes to its stderr.
enum class EngineLine {
  kWords,        ///< for people
  kIdleWarning,  ///< a warning although nothing is wrong and nobody can do anything about it
  kEvent,        ///< the program's record of what has happened, for Explain
};

/// One way to start the ranks of a job. Each is a row of LaunchEngines(); nothing outside this
/// folder knows the name of one. Stateless and thread-safe.
class LaunchEngine {
 public:
  virtual ~LaunchEngine() = default;

  /// The value of --launcher: "mpirun".
  virtual std::string name() const = 0;
  /// A remark in the help: "one host, without MPI". "": none.
  virtual std::string summary() const = 0;
  /// The program that dtrun starts, for messages: "dtrun_local".
  virtual std::string program() const = 0;
  /// The program comes with dtrun.
  virtual bool is_own() const = 0;
  /// Where a user finds more when the engine fails: "--verbose shows what Open MPI says". "":
  /// nowhere.
  virtual std::string more_words() const = 0;
  /// The engine prints of a lost rank as of a failure, also where the job goes on without the rank.
  virtual bool blames_lost_ranks() const = 0;

  /// The file of the program. `path`: what $PATH says. Throws LaunchError kUnavailable or
  /// kInternal.
  virtual std::string Find(const std::string& path) const = 0;

  /// Why the engine cannot start this job; "": it can. `call` has placement and arguments, no
  /// files.
  virtual std::string Probe(const EngineCall& call) const = 0;

  /// The words of the command, the program's file first. No value of an environment variable is
  /// among them. Pure. Throws UsageError for a host that the engine cannot reach by such a name.
  virtual std::vector<std::string> Argv(const EngineCall& call) const = 0;

  /// The file that other hosts need for the engine's daemon; "": none, or nobody knows.
  virtual std::string Daemon(const EngineCall& call) const = 0;

  /// Adds the variables that the engine's program needs. Pure.
  virtual void Prepare(const EngineCall& call, Variables& environment) const = 0;

  /// Removes variables that another engine's job has left and that would speak of that job. Pure.
  virtual void CleanEnvironment(Variables& environment) const = 0;

  /// Pure.
  virtual EngineLine Sort(std::string_view line) const = 0;

  /// Explains an exit code of the program where no rank's record says more. `events`: lines that
  /// Sort calls so. Pure.
  virtual EngineEnd Explain(
      int exit_code, const std::vector<base::HostSlots>& hosts,
      const std::string& events = "") const = 0;
};

/// All engines. The first is the default.
const std::vector<const LaunchEngine*>& LaunchEngines();

/// The engine of this name; null: there is none.
const LaunchEngine* FindLaunchEngine(const std::string& name);

/// The arguments of ssh before the host.
std::vector<std::string> SshArguments(const Reach& reach);

/// The command that runs another one on a host, once both are added to it.
std::vector<std::string> RemoteShell(const Reach& reach);
/// The host's name for ssh: an IPv6 address without its brackets.
std::string SshHost(const std::string& name);

/// An engine may search the whole command line, the program's arguments too, for words of its own
/// (mpirun: ":", "--tune", "-am"). So each word of the program travels with a mark in front, which
/// the wrapper takes off again.
std::vector<std::string> MarkWords(const std::vector<std::string>& words);
std::vector<std::string> UnmarkWords(const std::vector<std::string>& words);

/// words += more
void Append(std::vector<std::string>& words, const std::vector<std::string>& more);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_ENGINES_LAUNCH_ENGINE_H_
