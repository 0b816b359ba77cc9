#ifndef DTRUN_LAUNCHER_RANK_WRAPPED_PROGRAM_H_
#define DTRUN_LAUNCHER_RANK_WRAPPED_PROGRAM_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/rank/rank_link.h"

namespace dtrun::launcher {

/// Runs the program of a rank to its end, as a child in the same process group. Meanwhile it obeys
/// the agent's frames from `link`, and reports the end to `link`. `out` and `err` become the
/// program's stdout and stderr and are closed here. Returns the exit code for mpirun. If a signal
/// killed the program, this process dies of the same signal.
///
/// Exit code 75 (pre-empted and saved) is reported to the agent only: mpirun would kill the ranks
/// that are still saving. For an `expendable` rank, mpirun sees code 0 after any end of the
/// program, because the job goes on without the rank. A program that cannot start gives 126 or 127
/// in any case.
int RunProgram(
    const std::vector<std::string>& words, RankLink& link, int out, int err,
    bool expendable = false);

/// The signal that tells a program about the coming end of its job. The program starts with this
/// signal ignored, so that a program without a handler is not killed.
int NoticeSignal();

/// Whether a process takes notices, from the text of its /proc/PID/status. It has a handler for the
/// signal, or it blocks the signal to wait for it (signalfd, or sigwait in another thread).
bool TakesNotices(const std::string& status);

/// The other processes in this process group that take notices: the program of a rank, or children
/// of a script.
std::vector<pid_t> NoticeTakers();

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_RANK_WRAPPED_PROGRAM_H_
