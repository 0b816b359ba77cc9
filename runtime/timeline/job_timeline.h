#ifndef DTRUN_RUNTIME_TIMELINE_JOB_TIMELINE_H_
#define DTRUN_RUNTIME_TIMELINE_JOB_TIMELINE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "runtime/timeline/step_meter.h"
#include "runtime/timeline/trace_buffer.h"

namespace dtrun::runtime {

/// The timeline of a rank: on and off, by the launcher for the whole job or by the program. See
/// <dtrun/context.h>. Start and Stop are for one thread at a time; everything else may go on.
class Timeline {
 public:
  /// `owner.rank` is what the launcher calls this rank.
  Timeline(TraceBuffer::Owner owner, ops::Engine& engine);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// On until the process ends, for the launcher to read from this file. Throws Error kSystem.
  void StartInFile(const std::string& path);

  /// Collective over `world`, whose rank r runs on host `host_of_rank[r]`. Rank 0 opens `path`;
  /// where it cannot, all ranks throw Error kSystem. kInvalidArgument if one runs already.
  void Start(
      ops::Communicator& world, const std::vector<int>& host_of_rank, const std::string& path);
  /// Collective: rank 0 writes the timeline of all ranks; where it cannot, all throw Error kSystem.
  /// kInvalidArgument if none runs that Start has started.
  void Stop();
  /// One runs that Start has started.
  bool stoppable() const { return session_ != nullptr; }

  /// For a reducer of these gradients, which the timeline outlives.
  std::unique_ptr<ReducerObserver> ObserveReducer(std::vector<std::string> gradients);

 private:
  class Tracer;
  struct Session;

  std::vector<std::string> GatherTraces();
  std::string WriteTimeline(Session& session, const std::vector<std::string>& traces);

  TraceBuffer::Owner owner_;
  ops::Engine& engine_;
  std::shared_ptr<Tracer> tracer_;
  std::shared_ptr<TraceBuffer> memory_;  // of Start
  std::unique_ptr<ops::Communicator> communicator_;
  std::unique_ptr<Session> session_;
  bool in_file_ = false;
};

}  // namespace dtrun::runtime

#endif
