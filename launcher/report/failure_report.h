#ifndef DTRUN_LAUNCHER_REPORT_FAILURE_REPORT_H_
#define DTRUN_LAUNCHER_REPORT_FAILURE_REPORT_H_

#include <string>
#include <vector>

#include "launcher/protocol/exit_record.h"
#include "launcher/report/job_story.h"

namespace dtrun::launcher {

/// What dtrun says of a job that failed, a line each: why, the culprit, who was only a victim, what
/// the ranks were doing, and what is proved about the cause. None where the verdict has no message.
/// `show_last_lines`: the culprit's last lines on stderr can no longer be seen.
///
///   rank 1 on h2 was killed by SIGKILL
///     pid 4121, local rank 0, at 12:40:03.123, 62.345 s after the start
///     ranks 0, 2 and 3 were ended because of it
///   rank 1 is 1 collective behind on world: it last finished #1, barrier; ranks 0, 2 and 3 wait in
///   #2, all_reduce (f32, 4 elements, sum)
///   hint: the kernel killed it for lack of memory: ...
std::vector<std::string> FailureLines(const JobStory& story, bool show_last_lines);

/// The file of --report-json: see docs/reference/options.md.
std::string ReportJson(const JobStory& story);

/// What is proved about why this rank's program ended: never a guess. `last_lines` are those that
/// it wrote to stderr.
///   "the kernel killed it for lack of memory: in memory cgroup /train, limited to 64 MiB"
std::vector<std::string> HintsOf(const ExitRecord& record, const std::string& last_lines);

/// "64 MiB", "1.5 GiB", "0 bytes"
std::string BytesInWords(int64_t bytes);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_REPORT_FAILURE_REPORT_H_
