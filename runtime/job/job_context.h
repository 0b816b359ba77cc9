#ifndef DTRUN_RUNTIME_JOB_JOB_CONTEXT_H_
#define DTRUN_RUNTIME_JOB_JOB_CONTEXT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/launch_env.h"
#include "base/options.h"
#include "base/process.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/flight_recorder.h"
#include "ops/engine/progress_engine.h"
#include "ops/mpi/mpi_module.h"
#include "runtime/job/joined_job.h"
#include "runtime/job/topology.h"
#include "runtime/parameter_server/server_job.h"
#include "runtime/timeline/job_timeline.h"

namespace dtrun::runtime {

/// This process as a rank: everything that a job of one process needs, with no global behind it
/// but the instruction set of reductions (ops/reduce/reduce.h).
/// See <dtrun/context.h>.
class Context {
 public:
  /// Collective. `get` is the environment, `given` the options that win over it; the ranks are
  /// those of `handle`, if it has a communicator.
  Context(
      const base::GetEnv& get, const std::vector<std::pair<std::string, std::string>>& given,
      const ops::MpiHandle& handle = {});
  /// Logs an error that names this rank unless `Shutdown` was called.
  ~Context();

  /// Collective. After a timeout or with a peer lost it only says that this rank leaves on purpose:
  /// no barrier, and MPI is not finalised.
  void Shutdown();

  const Topology& topology() const { return job_.topology; }
  /// What the launcher calls this rank.
  int launch_rank() const { return job_.launch_rank(); }
  const Placement& placement() const { return job_.placement; }
  const std::vector<base::HostSlots>& hosts() const { return job_.placement.hosts; }
  /// What this rank knows of the job's parameter servers; nothing where there are none.
  const std::optional<ServerJob>& servers() const { return servers_; }
  int threads() const { return threads_; }
  int terminal_columns() const { return terminal_columns_; }
  const base::Options& options() const { return options_; }
  /// In one line what this process is and how it works, for people.
  std::string Describe() const;
  ops::Communicator& world() { return *world_; }
  ops::Engine& engine() { return *engine_; }
  ops::FlightRecorder& recorder() { return *engine_->options().recorder; }
  Timeline& timeline() { return *timeline_; }
  const base::LogSink& log() const { return log_; }
  /// Collective: the timeline of all ranks in one file of rank 0's, from here to StopTimeline.
  void StartTimeline(const std::string& path);

 private:
  void ChooseInstructionSet();
  int CountHostCpus() const;
  void StartEngine(const base::GetEnv& get);
  void WatchLeavers();
  void StartEngineThread(int host_cpus);
  std::shared_ptr<ops::FlightRecorder> MakeRecorder() const;
  void MakeTimeline();
  const std::string& HostName() const;
  ops::PeerRecords PeerRecords() const;
  std::function<void(const std::string& error)> OnGiveUp() const;

  void FindServers(const base::GetEnv& get);

  std::optional<base::LaunchEnv> launch_;
  base::Options options_;
  base::SteadyClock clock_;
  Job job_;
  int threads_ = 1;
  int terminal_columns_ = 0;
  std::string no_overlap_;  // why operations do not move between the trainer's calls; "": they do
  base::LogSink log_;
  std::unique_ptr<ops::Engine> engine_;
  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<ops::Communicator> world_;
  std::optional<ServerJob> servers_;
  bool shut_down_ = false;
};

}  // namespace dtrun::runtime

#endif
