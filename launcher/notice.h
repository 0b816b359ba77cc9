#ifndef DTRUN_LAUNCHER_NOTICE_H_
#define DTRUN_LAUNCHER_NOTICE_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace dtrun::launcher {

/// The signal by which a program is told that its job is going to be ended. A rank's program starts
/// with it ignored, so that it can hurt none that does not ask for it.
int NoticeSignal();

/// Whether a process takes notices, by its /proc/PID/status: it has a handler for the signal, or
/// blocks it in order to wait for it (signalfd, or sigwait in another thread).
bool TakesNotices(const std::string& status);

/// The processes of this one's process group that take notices, without itself: the program of a
/// rank, or what a script has started.
std::vector<pid_t> NoticeTakers();

}  // namespace dtrun::launcher

#endif
