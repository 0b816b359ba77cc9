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
#include "launcher/support/launch_error.h"
#include "launcher/support/user_files.h"

namespace dtrun::launcher {

/// The files about its ranks that a job was asked for: opened before it starts, some kept up to
/// date while it runs, all complete when it has ended.
class JobResults {
 public:
  /// Throws LaunchError kNoResult for a file that cannot be written.
  JobResults(const Options& options, std::vector<base::HostSlots> hosts);

  /// What the ranks did last is wanted, however the job ends.
  bool wants_flights() const { return flights_.has_value(); }

  /// The timeline of the ranks is wanted.
  bool wants_traces() const { return timeline_.has_value(); }

  /// Called now and then while the job runs.
  void Tick(std::chrono::steady_clock::time_point now, HostAgents& agents);

  /// Where the traces of ranks lie that the agents of these hosts have told.
  struct TracePlaces {
    std::string here, elsewhere;        ///< folders: of this machine's ranks, of others'
    std::vector<bool> on_this_machine;  ///< by host
  };

  /// The timeline that was written has nothing of any rank.
  bool timeline_is_empty() const { return timeline_is_empty_; }

  /// Writes all files; those that could not be.
  std::vector<LaunchError> Finish(
      const JobStory& story, const HostAgents& agents, const TracePlaces& traces);

 private:
  void WriteMetrics(const HostAgents& agents);
  void WriteTimeline(const JobStory& story, const HostAgents& agents, const TracePlaces& traces);

  std::vector<base::HostSlots> hosts_;
  std::optional<ResultFile> flights_, timeline_;
  std::optional<ReplacedFile> metrics_;
  bool timeline_is_empty_ = false;
  std::chrono::steady_clock::time_point asked_ = {};
};

}  // namespace dtrun::launcher

#endif
