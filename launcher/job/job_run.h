#ifndef DTRUN_LAUNCHER_JOB_JOB_RUN_H_
#define DTRUN_LAUNCHER_JOB_JOB_RUN_H_

#include <string>

#include "launcher/plan/job_options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/report/job_story.h"

namespace dtrun::launcher {

/// Prints "dtrun: message" to stderr, as one line.
void Say(const std::string& message);

/// Starts the planned job, waits for its end and prints why it failed. Adds the ranks' records and
/// the verdict to `story`. Returns dtrun's exit code. Throws LaunchError if the job cannot start.
int RunJob(Plan plan, const Options& options, JobStory& story);

}  // namespace dtrun::launcher

#endif
