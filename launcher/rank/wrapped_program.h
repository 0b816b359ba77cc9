#ifndef DTRUN_LAUNCHER_RANK_WRAPPED_PROGRAM_H_
#define DTRUN_LAUNCHER_RANK_WRAPPED_PROGRAM_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/rank/rank_link.h"

namespace dtrun::launcher {

/// Runs the program of a rank as a child in the same process group, to its end, and meanwhile does
/// what the agent says over `link`, which hears how it ended. `out` and `err` become the program's
/// and are closed here. Returns the exit code that is for mpirun; ends by the same signal as the
/// program did.
///
/// Exit code 75 (pre-empted and saved) is for the agent alone: mpirun would kill the ranks that are
/// still saving. Of an `expendable` rank every end is: the job goes on without it.
int RunProgram(
    const std::vector<std::string>& words, RankLink& link, int out, int err,
    bool expendable = false);

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

#endif  // DTRUN_LAUNCHER_RANK_WRAPPED_PROGRAM_H_
