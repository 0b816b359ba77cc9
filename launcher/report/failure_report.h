#ifndef DTRUN_LAUNCHER_REPORT_FAILURE_REPORT_H_
#define DTRUN_LAUNCHER_REPORT_FAILURE_REPORT_H_

#include <string>
#include <vector>

#include "launcher/protocol/exit_record.h"
#include "launcher/report/job_story.h"

namespace dtrun::launcher {

/// The report on a failed job, one line each: the reason, the culprit, the other ranks, their
/// activity, and hints. Empty if the verdict has no message. If `show_last_lines`, the report
/// begins with the culprit's last lines on stderr, because the user can no longer see them.
///
///   rank 1 on h2 was killed by SIGKILL
///     pid 4121, local rank 0, at 12:40:03.123, 62.345 s after the start
///     ranks 0, 2 and 3 were ended because of it
///   rank 1 is 1 collective behind on world: it last finished #1, barrier; ranks 0, 2 and 3 wait in
///   #2, all_reduce (f32, 4 elements, sum)
///   hint: the kernel killed it for lack of memory: ...
std::vector<std::string> FailureLines(const JobStory& story, bool show_last_lines);

/// A line about lost and gained ranks: "the job lost ranks 3 times and gained ranks once; all ranks
/// worked in 98.2 % of its 61.4 s". "": there were none. `now_ns`: the end of the job on the
/// monotonic clock.
std::string LossLine(const JobStory& story, int64_t now_ns);

/// The content of the --report-json file: see docs/reference/options.md.
std::string ReportJson(const JobStory& story);

/// The proved causes for the end of this rank's program, never guesses. `last_lines` are its last
/// lines on stderr.
///   "the kernel killed it for lack of memory: memory cgroup /train, limited to 64 MiB, counts 1
///   more such kill than when it started"
std::vector<std::string> HintsOf(const ExitRecord& record, const std::string& last_lines);

/// "64 MiB", "1.5 GiB", "0 bytes"
std::string BytesInWords(int64_t bytes);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_REPORT_FAILURE_REPORT_H_
