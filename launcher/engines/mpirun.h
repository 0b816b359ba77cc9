#ifndef DTRUN_LAUNCHER_ENGINES_MPIRUN_H_
#define DTRUN_LAUNCHER_ENGINES_MPIRUN_H_

#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/support/launcher_kind.h"

namespace dtrun::launcher {

/// How other hosts are reached.
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

/// All that decides how mpirun is called, or what stands in its place.
struct MpirunCall {
  Launcher launcher = Launcher::kMpirun;
  std::string mpirun;                      ///< file of mpirun or dtrun_local
  std::string wrapper;                     ///< file of dtrun_rank, the same on all hosts
  std::string reacher;                     ///< file of dtrun_reach, likewise, if it recovers
  std::string folder;                      ///< of the job, on this machine
  std::vector<base::HostSlots> placement;  ///< hosts with the slots in use
  std::vector<std::string> exported;       ///< names of the variables that other hosts get
  std::vector<std::string> mpi_args;       ///< the user's; they replace dtrun's own
  bool only_this_machine = false;          ///< no other host is in the placement
  Reach reach;                             ///< how the other hosts are reached
  bool as_root = false;
  bool recovers = false;  ///< ranks go on when one is lost, or Open MPI's daemon of another host
  bool quiet = true;      ///< mpirun keeps its own messages to itself
  std::vector<std::string> program;
};

/// The words of the command, mpirun's file first. No value of an environment variable is in it.
/// Throws UsageError for a host that Open MPI cannot reach by such a name.
std::vector<std::string> MpirunArgv(const MpirunCall& call);

/// The words that start the ranks, by mpirun or dtrun_local. Throws UsageError as MpirunArgv does.
std::vector<std::string> StartArgv(const MpirunCall& call);

/// What ssh is called with, before the host.
std::vector<std::string> SshArguments(const Reach& reach);

/// What a host and a command are added to, to run that command there.
std::vector<std::string> RemoteShell(const Reach& reach);
/// How ssh wants the host to be called: an IPv6 address without its brackets.
std::string SshHost(const std::string& name);

/// mpirun searches the whole command line, the program's arguments too, for words of its own (":",
/// "--tune", "-am"). So each word of the program travels with a mark in front, which the wrapper
/// takes off again.
std::vector<std::string> MarkWords(const std::vector<std::string>& words);
std::vector<std::string> UnmarkWords(const std::vector<std::string>& words);

/// Whether `version`, the first line of `mpirun --version`, is an Open MPI that dtrun works with:
/// "mpirun (Open MPI) 4.1.4", and 5.
bool IsSupportedMpirun(const std::string& version);

/// The folder in which Open MPI's daemon keeps the files of this process's job on this host, as it
/// has told this rank: /tmp/ompi.HOST.USER/jf.NUMBER. "": it has told none.
std::string OwnSessionFolder();

/// Removes such a folder of this user, and the one above it if that is empty then: what a daemon
/// that was killed could not do itself. Leaves alone what does not look like one.
void RemoveSessionFolder(const std::string& folder);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_ENGINES_MPIRUN_H_
