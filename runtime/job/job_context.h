#ifndef DTRUN_RUNTIME_JOB_JOB_CONTEXT_H_
#define DTRUN_RUNTIME_JOB_JOB_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/elastic_files.h"
#include "base/launch_env.h"
#include "base/options.h"
#include "base/process.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/collective/collective.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/flight_recorder.h"
#include "ops/engine/progress_engine.h"
#include "ops/mpi/mpi_module.h"
#include "runtime/job/job_epoch.h"
#include "runtime/job/topology.h"
#include "runtime/parameter_server/message_stream.h"
#include "runtime/timeline/job_timeline.h"

namespace dtrun::runtime {

/// The address of this host that the other hosts reach, and its network interface: "10.0.0.1",
/// "eth0". "": not known.
struct OwnPlace {
  std::string address, interface;
};

/// The ranks of a job before a communicator connects them.
struct Job {
  std::unique_ptr<ops::MpiJob> mpi;         ///< null if MPI does not connect the ranks
  std::unique_ptr<ops::Bootstrap> meeting;  ///< null if the ranks have not met without MPI
  std::string description;                  ///< how the ranks were joined: "through MPI"
  Placement placement;
  Topology topology{};
  /// The ranks by their numbers in the launch, with their hosts if there are several. In a job with
  /// parameter servers: only this rank.
  ops::Members members;
  /// True in a job with parameter servers. There, each rank is a world of its own, so no other
  /// rank's collective waits for a lost rank.
  bool apart = false;
  OwnPlace own_place;
  std::string secret;  ///< known to all ranks; "": none

  /// The launcher's number for this rank.
  int launch_rank() const {
    return members.world_ranks[apart ? 0 : static_cast<size_t>(topology.rank)];
  }

  /// The bootstrap between the ranks. Null in a world of one without MPI, and in a job with
  /// parameter servers.
  ops::Bootstrap* bootstrap() const { return mpi != nullptr ? &mpi->bootstrap() : meeting.get(); }
};

/// The secret of a job that dtrun has started on several hosts. Throws Error kSystem if the file
/// cannot be read.
std::string JobSecret(const base::LaunchEnv& launch);

/// Joins this process with its job. If `handle` has a communicator, the job is its processes.
/// Otherwise it is the processes that were launched together (join_plan.h). A process that was
/// launched alone is a world of one. Collective over these processes, which join the same epoch of
/// the job (JobEpoch).
///
/// Checks that the ranks agree on version, launch and options. Throws Error kMismatch with the
/// first difference, and the errors of PlanJoin, ops::JoinLocally, ops::JoinAtStore and
/// ops::JoinMpiJob. A communicator of processes that MPI did not launch is kInvalidArgument. A
/// communicator in a job with parameter servers is kUnavailable.
Job JoinJob(
    const base::GetEnv& get, const std::optional<base::LaunchEnv>& launch,
    const base::Options& options, const ops::MpiHandle& handle, uint32_t epoch = 0);

/// A rank of a job: all state that one process needs for the job. The only global state is the
/// instruction set of reductions (ops/reduce/reduce.h). See <dtrun/context.h>.
class Context {
 public:
  /// Collective. `get` reads the environment. The options in `given` win over the environment. If
  /// `handle` has a communicator, its processes are the ranks.
  Context(
      const base::GetEnv& get, const std::vector<std::pair<std::string, std::string>>& given,
      const ops::MpiHandle& handle = {});
  /// Logs an error that names this rank if the job has other ranks, has not given up, and
  /// `Shutdown` was not called.
  ~Context();

  /// Collective. If the engine has given up (a timeout or a lost peer), Shutdown returns at once:
  /// without a shutdown collective, and without finalising MPI.
  void Shutdown();

  /// After an error with this code: whether the job has lost ranks and goes on in another epoch,
  /// in which this process may join again. Waits some time for the launcher to notice the loss. If
  /// the result is true, this object may only be destroyed.
  bool AwaitRecovery(ErrorCode code);
  /// The epoch of the job (JobEpoch, LaunchEnv::epoch). 0 if it has lost no rank.
  uint32_t epoch() const;

  /// Whether this rank keeps the state of its training for its whole host: see <dtrun/context.h>.
  bool keeps_state() const;
  void KeepState(const std::string& name, uint64_t step, const void* state, size_t bytes);
  /// The result is valid until the next call. Null: there is none.
  const base::KeptState* LoadState(const std::string& name);

  const Topology& topology() const { return job_.topology; }
  /// The number of ranks that the job had at its start.
  int launch_size() const;
  /// The launcher's number for this rank.
  int launch_rank() const { return job_.launch_rank(); }
  /// The faults that ranks make on purpose; null: none.
  const std::vector<base::Corruption>* corruptions() const {
    return launch_ ? &launch_->corruptions : nullptr;
  }
  const Placement& placement() const { return job_.placement; }
  const std::vector<base::HostSlots>& hosts() const { return job_.placement.hosts; }
  /// The index in `hosts()` of the host of the rank with this number of the launcher; -1: none.
  int HostOfLaunchRank(int rank) const;
  /// The parameter servers of the job; nullopt if there are none.
  const std::optional<ServerJob>& servers() const { return servers_; }
  int threads() const { return threads_; }
  int terminal_columns() const { return terminal_columns_; }
  const base::Options& options() const { return options_; }
  /// One line for people: the rank of this process, and how it works.
  std::string Describe() const;
  ops::Communicator& world() { return *world_; }
  ops::Engine& engine() { return *engine_; }
  ops::FlightRecorder& recorder() { return *engine_->options().recorder; }
  Timeline& timeline() { return *timeline_; }
  const base::LogSink& log() const { return log_; }
  /// Collective. Starts a timeline of all ranks, until Timeline::Stop. Rank 0 writes it to `path`.
  void StartTimeline(const std::string& path);

 private:
  base::GetEnv EnterEpoch(const base::GetEnv& of_process, const std::function<void()>& tell);
  void ChooseInstructionSet();
  int CountHostCpus() const;
  void StartEngine(const base::GetEnv& get);
  void WatchLeavers();
  std::chrono::seconds PeerTimeout() const;
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
  std::string no_overlap_;  // why the engine has no thread; "": it has a thread
  base::LogSink log_;
  std::unique_ptr<ops::Engine> engine_;
  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<ops::Communicator> world_;
  std::optional<ServerJob> servers_;
  bool shut_down_ = false;
  std::optional<base::KeptState> kept_;  // the last one loaded
  bool warned_of_keeping_ = false;
  std::unique_ptr<JobEpoch> epoch_;  // watches engine_; null: lost ranks are not started again
};

}  // namespace dtrun::runtime

#endif
