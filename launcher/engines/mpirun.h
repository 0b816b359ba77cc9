#ifndef DTRUN_LAUNCHER_ENGINES_MPIRUN_H_
#define DTRUN_LAUNCHER_ENGINES_MPIRUN_H_

#include <string>
#include <vector>

#include "launcher/engines/launch_engine.h"

namespace dtrun::launcher {

/// The words of the command, with mpirun's path first. They contain no value of an environment
/// variable. `open_mpi` is 4 or 5. Throws UsageError for a host name that Open MPI cannot use.
std::vector<std::string> MpirunArgv(const EngineCall& call, int open_mpi = 4);

/// The name that a parameter of Open MPI 4 has in Open MPI 5: "prte_launch_agent" for
/// "orte_launch_agent". The parameters of MPI itself keep their names.
std::string NameInOpenMpi5(const std::string& parameter);

/// The program that mpirun starts on other hosts: "orted" of Open MPI 4, "prted" of Open MPI 5.
std::string MpirunDaemon(int open_mpi);

/// 4 or 5 if `version`, the first line of `mpirun --version`, is of a supported Open MPI: 4 for
/// "mpirun (Open MPI) 4.1.4". 0: it is not.
int OpenMpiOf(const std::string& version);

/// The folder of Open MPI's daemon for this process's job on this host, from the rank's
/// environment: /tmp/ompi.HOST.USER/jf.NUMBER. "": not set.
std::string OwnSessionFolder();

/// Removes such a folder of this user, then its parent folder if that is empty: a killed daemon
/// leaves both behind. Ignores any other path.
void RemoveSessionFolder(const std::string& folder);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_ENGINES_MPIRUN_H_
