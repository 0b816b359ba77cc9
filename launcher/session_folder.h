#ifndef DTRUN_LAUNCHER_SESSION_FOLDER_H_
#define DTRUN_LAUNCHER_SESSION_FOLDER_H_

#include <string>

namespace dtrun::launcher {

/// The folder in which Open MPI's daemon keeps the files of this process's job on this host, as it
/// has told this rank: /tmp/ompi.HOST.USER/jf.NUMBER. "": it has told none.
std::string OwnSessionFolder();

/// Removes such a folder of this user, and the one above it if that is empty then: what a daemon
/// that was killed could not do itself. Leaves alone what does not look like one.
void RemoveSessionFolder(const std::string& folder);

}  // namespace dtrun::launcher

#endif
