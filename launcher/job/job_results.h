#ifndef DTRUN_LAUNCHER_JOB_JOB_RESULTS_H_
#define DTRUN_LAUNCHER_JOB_JOB_RESULTS_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/job/host_agents.h"
#include "launcher/plan/job_options.h"
#include "launcher/report/job_story.h"
#include "launcher/report/progress_report.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/user_files.h"

namespace dtrun::launcher {

/// The result files that the user has asked for. They are opened before the job starts and complete
/// when it has ended; metrics are also updated while it runs.
class JobResults {
 public:
  /// Throws LaunchError kNoResult for a file that cannot be written.
  JobResults(const Options& options, std::vector<base::HostSlots> hosts);

  /// The hosts of the ranks from now on.
  void SetHosts(std::vector<base::HostSlots> hosts) { hosts_ = std::move(hosts); }

  /// The changes of a job with --restarts.
  void SetJob(const JobMetrics& job) { job_ = job; }

  /// Whether flight records are wanted even if the job succeeds.
  bool wants_flights() const { return flights_.has_value(); }

  /// Whether the timeline of the ranks is wanted.
  bool wants_traces() const { return timeline_.has_value(); }

  /// Call it now and then while the job runs.
  void Tick(std::chrono::steady_clock::time_point now, HostAgents& agents);

  /// Whether the timeline was written without a trace of any rank.
  bool timeline_is_empty() const { return timeline_is_empty_; }

  /// Writes all files. The traces of this machine's ranks are in `flight_folder`. Returns an error
  /// for each file that could not be written.
  std::vector<LaunchError> Finish(
      const JobStory& story, const HostAgents& agents, const std::string& flight_folder);

 private:
  void WriteMetrics(const HostAgents& agents);
  void WriteTimeline(
      const JobStory& story, const HostAgents& agents, const std::string& flight_folder);

  std::vector<base::HostSlots> hosts_;
  std::optional<JobMetrics> job_;
  std::optional<ResultFile> flights_, timeline_;
  std::optional<ReplacedFile> metrics_;
  bool timeline_is_empty_ = false;
  std::chrono::steady_clock::time_point asked_ = {};
};

}  // namespace dtrun::launcher

#endif
