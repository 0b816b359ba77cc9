#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/launch_env.h"
#include "base/text.h"
#include "base/version.h"
#include "dtrun/c.h"
#include "ops/backends/backends.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/engine/flight_recorder.h"
#include "runtime/c_api/handles.h"
#include "runtime/device/block_device.h"
#include "runtime/job/job_epoch.h"
#include "runtime/job/join_by_hand.h"

namespace {

using dtrun::Error;
using dtrun::ErrorCode;
using dtrun::base::Text;
using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Destroy;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::Use;
namespace ops = dtrun::ops;

std::vector<std::pair<std::string, std::string>> Given(
    const dtrun_option* options, size_t option_count) {
  std::vector<std::pair<std::string, std::string>> given;
  for (size_t i = 0; i < option_count; ++i) {
    CheckNotNull(options[i].name, "the name of an option");
    CheckNotNull(options[i].value, "the value of an option");
    given.emplace_back(options[i].name, options[i].value);
  }
  return given;
}

}  // namespace

int32_t dtrun_error_code(const dtrun_error* error) { return error == nullptr ? 0 : error->code; }
const char* dtrun_error_message(const dtrun_error* error) {
  return error == nullptr ? "" : error->message.c_str();
}
const char* dtrun_error_operation(const dtrun_error* error) {
  return error == nullptr ? "" : error->operation.c_str();
}
void dtrun_error_ranks(const dtrun_error* error, int32_t* ranks, size_t* count) {
  if (count == nullptr) return;
  const size_t all = error == nullptr ? 0 : error->ranks.size();
  if (ranks != nullptr && error != nullptr)
    std::copy_n(error->ranks.begin(), std::min(*count, all), ranks);
  *count = all;
}
void dtrun_error_destroy(dtrun_error* error) { delete error; }

const char* dtrun_version(void) { return dtrun::base::kVersion; }

dtrun_error* dtrun_init(const dtrun_option* options, size_t option_count, dtrun_context** context) {
  return Guard([&] {
    CheckNotNull(context, "context");
    dtrun::runtime::JoinSomeEpoch(dtrun::base::ProcessEnv, [&] {
      *context = new dtrun_context(Given(options, option_count), {});
    });
  });
}

dtrun_error* dtrun_init_mpi(
    const void* mpi_comm, size_t mpi_comm_bytes, const char* mpi_library,
    const dtrun_option* options, size_t option_count, dtrun_context** context) {
  return Guard([&] {
    CheckNotNull(mpi_comm, "mpi_comm");
    CheckNotNull(mpi_library, "mpi_library");
    CheckNotNull(context, "context");
    const dtrun::ops::MpiHandle handle{
        .comm = mpi_comm, .bytes = mpi_comm_bytes, .library = mpi_library};
    *context = new dtrun_context(Given(options, option_count), handle);
  });
}

dtrun_error* dtrun_check_tf_config(const dtrun_context* context) {
  return Guard([&] {
    const dtrun::runtime::Context& job = Use(context, "context").context;
    dtrun::runtime::CheckTfJob(
        dtrun::base::ProcessEnv, job.topology().rank, job.placement().host_of_rank);
  });
}

dtrun_error* dtrun_shutdown(dtrun_context* context) {
  return Guard([&] {
    CheckNotNull(context, "context");
    // A forked child may call this function from atexit. It has no job to end.
    if (!context->owner.process.watch.forked()) context->context.Shutdown();
  });
}

dtrun_error* dtrun_await_recovery(dtrun_context* context, int32_t error_code, int32_t* recovers) {
  return Guard([&] {
    CheckNotNull(recovers, "recovers");
    *recovers =
        Use(context, "context").context.AwaitRecovery(static_cast<dtrun::ErrorCode>(error_code))
            ? 1
            : 0;
  });
}

int32_t dtrun_context_launch_size(const dtrun_context* context) {
  return context->context.launch_size();
}

uint32_t dtrun_context_epoch(const dtrun_context* context) { return context->context.epoch(); }

int32_t dtrun_context_keeps_state(const dtrun_context* context) {
  return context->context.keeps_state() ? 1 : 0;
}

dtrun_error* dtrun_keep_state(
    dtrun_context* context, const char* name, uint64_t step, const void* state, size_t bytes) {
  return Guard([&] {
    CheckNotNull(name, "name");
    if (bytes > 0) CheckNotNull(state, "state");
    Use(context, "context").context.KeepState(name, step, state, bytes);
  });
}

dtrun_error* dtrun_load_state(
    dtrun_context* context, const char* name, uint64_t* step, const void** state, size_t* bytes) {
  return Guard([&] {
    CheckNotNull(name, "name");
    CheckNotNull(step, "step");
    CheckNotNull(state, "state");
    CheckNotNull(bytes, "bytes");
    const auto* kept = Use(context, "context").context.LoadState(name);
    *step = kept == nullptr ? 0 : kept->step;
    *state = kept == nullptr ? nullptr : kept->bytes.data();
    *bytes = kept == nullptr ? 0 : kept->bytes.size();
  });
}

void dtrun_context_destroy(dtrun_context* context) { Destroy(context); }

const char* dtrun_context_description(const dtrun_context* context) {
  return context->description.c_str();
}

const char* dtrun_context_option(const dtrun_context* context, const char* name) {
  for (const auto& [option, value] : context->options) {
    if (name != nullptr && option == name) return value.c_str();
  }
  return nullptr;
}

dtrun_topology dtrun_context_topology(const dtrun_context* context) {
  return context->context.topology();
}

int32_t dtrun_context_host_count(const dtrun_context* context) {
  return static_cast<int32_t>(context->context.hosts().size());
}

const char* dtrun_context_host_name(const dtrun_context* context, int32_t host) {
  if (host < 0 || host >= dtrun_context_host_count(context)) return nullptr;
  return context->context.hosts()[static_cast<size_t>(host)].name.c_str();
}

int32_t dtrun_context_host_slots(const dtrun_context* context, int32_t host) {
  if (host < 0 || host >= dtrun_context_host_count(context)) return 0;
  return context->context.hosts()[static_cast<size_t>(host)].slots;
}

int32_t dtrun_context_host_of_rank(const dtrun_context* context, int32_t rank) {
  return context->context.HostOfLaunchRank(rank);
}

int32_t dtrun_context_threads(const dtrun_context* context) { return context->context.threads(); }
int32_t dtrun_context_terminal_columns(const dtrun_context* context) {
  return context->context.terminal_columns();
}
dtrun_communicator* dtrun_context_world(dtrun_context* context) { return &context->world; }

dtrun_error* dtrun_report_progress(dtrun_context* context, uint64_t step, uint64_t examples) {
  return Guard([&] { Use(context, "context").context.recorder().ReportProgress(step, examples); });
}

dtrun_error* dtrun_timeline_start(dtrun_context* context, const char* path) {
  return Guard([&] {
    CheckNotNull(path, "path");
    Use(context, "context").context.StartTimeline(path);
  });
}

dtrun_error* dtrun_timeline_stop(dtrun_context* context) {
  return Guard([&] { Use(context, "context").context.timeline().Stop(); });
}

dtrun_error* dtrun_cuda_device_count(int32_t* count) {
  return Guard([&] {
    CheckNotNull(count, "count");
    *count = dtrun::runtime::CudaDeviceCount();
  });
}

// Replicas of one process. Each is a thread with an engine and a world of its own. The worlds meet
// in memory, and are shm communicators like those of processes on one host.
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
    owner.process.launch_rank = index;
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
