#ifndef DTRUN_LAUNCHER_PREEMPTION_H_
#define DTRUN_LAUNCHER_PREEMPTION_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/launch_env.h"
#include "launcher/exit_record.h"

namespace dtrun::launcher {

// A rank that was told that its job is going to be ended, and has saved what the job needs to go on
// later, says so by exit code 75.

/// Whether all of `ranks` ranks ended by themselves and had saved: with 75 or 0, one at least with
/// 75. Ranks that take a notice in time (`in_grace`: dtrun was told to end, and gave them time) may
/// all say 0.
bool HaveSaved(const std::vector<ExitRecord>& records, int ranks, bool in_grace);

/// What to end a job with in which one rank has saved and another goes on for longer than `grace`:
/// Open MPI would never end it.
std::optional<Verdict> JudgeLate(
    const std::vector<ExitRecord>& records, const std::vector<base::HostSlots>& hosts,
    std::chrono::seconds grace, int64_t now_ns);

}  // namespace dtrun::launcher

#endif
