#include <string>
#include <utility>
#include <vector>

#include "base/launch_env.h"
#include "base/version.h"
#include "dtrun/c.h"
#include "runtime/c_api/handles.h"
#include "runtime/device/block_device.h"
#include "runtime/job/job_epoch.h"
#include "runtime/job/join_by_hand.h"

namespace {

using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Destroy;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::Use;

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
    if (!context->owner.watch.forked()) context->context.Shutdown();
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
