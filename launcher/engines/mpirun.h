#ifndef DTRUN_LAUNCHER_ENGINES_MPIRUN_H_
#define DTRUN_LAUNCHER_ENGINES_MPIRUN_H_

#include <string>
#include <vector>

#include "launcher/engines/launch_engine.h"

namespace dtrun::launcher {

/// The words of the command, mpirun's file first. No value of an environment variable is in it.
/// Throws UsageError for a host that Open MPI cannot reach by such a name.
std::vector<std::string> MpirunArgv(const EngineCall& call);

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
