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

/// The timeline of a rank. The launcher turns it on for the whole job, or the program turns it on
/// and off. See <dtrun/context.h>. One thread at a time calls Start and Stop; other threads may go
/// on with their operations.
class Timeline {
 public:
  /// `owner.rank` is the launcher's number for this rank.
  Timeline(TraceBuffer::Owner owner, ops::Engine& engine);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Turns the timeline on until the process ends. The launcher reads it from the file `path`.
  /// Throws Error kSystem.
  void StartInFile(const std::string& path);

  /// Collective over `world`, where rank r runs on host `host_of_rank[r]`. Rank 0 opens `path`. If
  /// rank 0 cannot open it, or a rank has no memory, all ranks throw Error kSystem. Throws
  /// kInvalidArgument if a timeline is running already.
  void Start(
      ops::Communicator& world, const std::vector<int>& host_of_rank, const std::string& path);
  /// Collective: rank 0 writes the timeline of all ranks. If it cannot, all ranks throw Error
  /// kSystem. Throws kInvalidArgument if no timeline from Start is running.
  void Stop();
  /// True if a timeline from Start is running.
  bool stoppable() const { return session_ != nullptr; }

  /// Returns an observer for a reducer of these gradients. The timeline outlives the reducer.
  std::unique_ptr<ReducerObserver> ObserveReducer(std::vector<std::string> gradients);

 private:
  class Tracer;
  struct Session;

  std::vector<std::string> GatherTraces();
  std::string WriteTimeline(Session& session, const std::vector<std::string>& traces);

  TraceBuffer::Owner owner_;
  ops::Engine& engine_;
  std::shared_ptr<Tracer> tracer_;
  std::shared_ptr<TraceBuffer> memory_;  // for Start
  std::unique_ptr<ops::Communicator> communicator_;
  std::unique_ptr<Session> session_;
  bool in_file_ = false;
};

}  // namespace dtrun::runtime

#endif
