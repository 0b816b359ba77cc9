#ifndef DTRUN_LAUNCHER_RANK_PROGRAM_H_
#define DTRUN_LAUNCHER_RANK_PROGRAM_H_

#include <string>
#include <vector>

#include "launcher/rank_link.h"

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

}  // namespace dtrun::launcher

#endif
