// Replicas of one process. Each is a thread with an engine and a world of its own. The worlds meet
// in memory, and are shm communicators like those of processes on one host.

#include <memory>
#include <vector>

#include "base/text.h"
#include "dtrun/c.h"
#include "ops/backends/backends.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/engine/flight_recorder.h"
#include "runtime/c_api/handles.h"

namespace {

using dtrun::Error;
using dtrun::ErrorCode;
using dtrun::base::Text;
using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::Use;
namespace ops = dtrun::ops;

}  // namespace

struct dtrun_replicas {
  // Declared in the order in which the parts are made.
  struct Replica {
    std::unique_ptr<ops::Bootstrap> bootstrap;
    std::shared_ptr<ops::FlightRecorder> recorder;
    std::unique_ptr<ops::Engine> engine;
    std::unique_ptr<ops::Communicator> world;
    std::unique_ptr<dtrun_communicator> handle;
  };

  dtrun_replicas(dtrun_context& context_in, int count)
      : context(context_in), ranks(count), replicas(static_cast<size_t>(count)) {}

  Replica& At(int index) {
    if (index >= 0 && index < ranks.size()) return replicas[static_cast<size_t>(index)];
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("replica ", index, " of ", ranks.size(), "; they count from 0"));
  }

  void Join(int index) {
    Replica& replica = At(index);
    const auto& options = context.context.options();
    replica.bootstrap = ranks.Join(index);
    replica.recorder = ops::FlightRecorder::InMemory(index, "here");
    ops::EngineOptions engine = context.context.engine().options();
    engine.may_spin = ranks.size() <= context.context.threads();
    engine.recorder = replica.recorder;
    engine.peer_records = nullptr;
    replica.engine = std::make_unique<ops::Engine>(engine, clock, context.context.log());
    ops::World world;
    world.bootstrap = replica.bootstrap.get();
    world.host_of_rank.assign(static_cast<size_t>(ranks.size()), 0);
    world.members = ops::Members::World(ranks.size());
    world.devices = {.backend = options.device_backend, .memory_bytes = options.gpu_memory_bytes};
    replica.world =
        ops::CreateWorldCommunicator(world, *replica.engine, "shm", context.context.log());
    ops::Communicator& made = *replica.world;
    replica.engine->WatchLeavers(
        {.self = index,
         .leave = [&made] { made.Leave(); },
         .leavers = [&made] { return made.Left(); }});
    dtrun::runtime::c_api::Owner owner = context.owner;
    owner.launch_rank = index;
    owner.recorder = replica.recorder.get();
    owner.timeline = nullptr;
    owner.engine = replica.engine.get();
    replica.handle.reset(
        new dtrun_communicator{owner, &made, nullptr, context.world.reducer_defaults});
  }

  dtrun_context& context;
  dtrun::base::SteadyClock clock;
  ops::ThreadRanks ranks;
  std::vector<Replica> replicas;
};

dtrun_error* dtrun_replicas_create(
    dtrun_context* context, int32_t count, dtrun_replicas** replicas) {
  return Guard([&] {
    CheckNotNull(replicas, "replicas");
    if (count < 1 || count > 1024) {
      throw Error(
          ErrorCode::kInvalidArgument, Text(count, " replicas in a process; expected 1 to 1024"));
    }
    *replicas = new dtrun_replicas(Use(context, "context"), count);
  });
}

dtrun_error* dtrun_replicas_join(
    dtrun_replicas* replicas, int32_t index, dtrun_communicator** world) {
  return Guard([&] {
    CheckNotNull(replicas, "replicas");
    CheckNotNull(world, "world");
    replicas->Join(index);
    *world = replicas->At(index).handle.get();
  });
}

dtrun_error* dtrun_replicas_leave(dtrun_replicas* replicas, int32_t index, int32_t failed) {
  return Guard([&] {
    CheckNotNull(replicas, "replicas");
    dtrun_replicas::Replica& replica = replicas->At(index);
    if (replica.world == nullptr || replica.engine->gave_up()) return;
    if (failed != 0) return replica.world->Leave();
    replica.engine->Leave(replica.world->Start({.kind = ops::CollectiveKind::kShutdown}));
  });
}

void dtrun_replicas_destroy(dtrun_replicas* replicas) { delete replicas; }
