#ifndef DTRUN_LAUNCHER_JOB_JOB_RUN_H_
#define DTRUN_LAUNCHER_JOB_JOB_RUN_H_

#include <string>

#include "launcher/plan/job_options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/report/job_story.h"

namespace dtrun::launcher {

/// Prints "dtrun: message" to stderr, as one line.
void Say(const std::string& message);

/// Starts the planned job, waits for its end and says why it failed, if it did. Adds to `story`
/// what is known of its ranks then. Returns what dtrun exits with. Throws LaunchError when there is
/// no job.
int RunJob(Plan plan, const Options& options, JobStory& story);

}  // namespace dtrun::launcher

#endif
