#ifndef DTRUN_LAUNCHER_MPIRUN_H_
#define DTRUN_LAUNCHER_MPIRUN_H_

#include <string>
#include <vector>

#include "base/launch_env.h"

namespace dtrun::launcher {

/// All that decides how mpirun is called.
struct MpirunCall {
  std::string mpirun;                      ///< its file
  std::string wrapper;                     ///< file of dtrun_rank, the same on all hosts
  std::string folder;                      ///< of the job, on this machine
  std::vector<base::HostSlots> placement;  ///< hosts with the slots in use
  std::vector<std::string> exported;       ///< names of the variables that other hosts get
  std::vector<std::string> mpi_args;       ///< the user's; they replace dtrun's own
  bool only_this_machine = false;          ///< no other host is in the placement
  bool as_root = false;
  bool quiet = true;  ///< mpirun keeps its own messages to itself
  std::vector<std::string> program;
};

/// The words of the command, mpirun's file first. No value of an environment variable is in it.
/// Throws UsageError for a host that Open MPI cannot reach by such a name.
std::vector<std::string> MpirunArgv(const MpirunCall& call);

/// mpirun searches the whole command line, the program's arguments too, for words of its own (":",
/// "--tune", "-am"). So each word of the program travels with a mark in front, which the wrapper
/// takes off again.
std::vector<std::string> MarkWords(const std::vector<std::string>& words);
std::vector<std::string> UnmarkWords(const std::vector<std::string>& words);

/// The names of `environment` (NAME=value) that go to other hosts: all but those that look like
/// secrets, those that no shell could set, and what belongs to one machine's Open MPI.
std::vector<std::string> ForwardedNames(const std::vector<std::string>& environment);

/// Whether `version`, the first line of `mpirun --version`, is an Open MPI that dtrun works with:
/// "mpirun (Open MPI) 4.1.4", and 5.
bool IsSupportedMpirun(const std::string& version);

}  // namespace dtrun::launcher

#endif
