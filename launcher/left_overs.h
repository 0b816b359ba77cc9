#ifndef DTRUN_LAUNCHER_LEFT_OVERS_H_
#define DTRUN_LAUNCHER_LEFT_OVERS_H_

#include <sys/types.h>

#include <string>

namespace dtrun::launcher {

/// Sends `signal` to the process group of `process`, unless it is this process's own.
void SignalGroupOf(pid_t process, int signal);

/// The parent of a process; -1 if there is no such process.
pid_t ParentOf(pid_t process);

/// Whether it exists and has not ended.
bool IsRunning(pid_t process);

/// Kills this user's processes on this host that have DTRUN_JOB=`job` in their environment, but not
/// this process: what programs of the job have left behind.
void KillProcessesOf(const std::string& job);

}  // namespace dtrun::launcher

#endif
