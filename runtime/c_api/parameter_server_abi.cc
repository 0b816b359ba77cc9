#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/c.h"
#include "dtrun/error.h"
#include "runtime/c_api/handles.h"
#include "runtime/parameter_server/variable_client.h"
#include "runtime/parameter_server/variable_server.h"

struct dtrun_parameter_server {
  dtrun::runtime::c_api::Owner owner;
  dtrun::runtime::ParameterServer server;
};

struct dtrun_parameter_client {
  dtrun::runtime::c_api::Owner owner;
  size_t variables;
  dtrun::runtime::ParameterClient client;
};

namespace {

using dtrun::Error;
using dtrun::ErrorCode;
using dtrun::base::Text;
using dtrun::runtime::ServerJob;
using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Destroy;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::ReadSized;
using dtrun::runtime::c_api::ReadTensors;
using dtrun::runtime::c_api::Use;

const ServerJob& ServersOf(dtrun_context* context) {
  const auto& servers = Use(context, "context").context.servers();
  if (!servers)
    throw Error(
        ErrorCode::kInvalidArgument,
        "this job has no parameter servers; start it with dtrun --ps N");
  return *servers;
}

// The two highest bits select the rule; see dtrun_partition_of_max_bytes.
dtrun::runtime::PartitionRule RuleOf(uint64_t told) {
  using Kind = dtrun::runtime::PartitionRule::Kind;
  const uint64_t number = told & ~(uint64_t{3} << 62);
  switch (told >> 62) {
    case 1: return {Kind::kMaxSize, number};
    case 2: return {Kind::kFixedShards, number};
    default: return {Kind::kMinSize, told};
  }
}

dtrun::runtime::TrainingPlan PlanOf(const dtrun_parameter_server_options& told) {
  if (told.workers < 1)
    throw Error(
        ErrorCode::kInvalidArgument, Text("workers is ", told.workers, "; expected at least 1"));
  if (told.readers < 0)
    throw Error(
        ErrorCode::kInvalidArgument, Text("readers is ", told.readers, "; expected at least 0"));
  if (told.first_step > told.steps)
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("first_step is ", told.first_step, "; expected at most steps, ", told.steps));
  dtrun::runtime::TrainingPlan plan;
  plan.first_step = told.first_step;
  plan.steps = told.steps;
  if (told.max_staleness != UINT64_MAX) plan.max_staleness = told.max_staleness;
  plan.partition = RuleOf(told.min_partition_bytes);
  plan.workers = told.workers;
  plan.readers = told.readers;
  return plan;
}

template <typename Struct>
void CheckSize(const Struct* told, const char* name, const char* how_to_begin) {
  CheckNotNull(told, name);
  if (told->struct_bytes < sizeof *told)
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "struct_bytes of ", name, " is ", told->struct_bytes, "; expected ", sizeof *told,
            ": begin with ", how_to_begin));
}

void CheckIndex(size_t index, size_t count, const char* what) {
  if (index < count) return;
  throw Error(
      ErrorCode::kInvalidArgument, Text(what, " ", index, " does not exist; found ", count));
}

}  // namespace

int32_t dtrun_context_parameter_servers(const dtrun_context* context) {
  const auto& servers = context->context.servers();
  return servers ? servers->servers : 0;
}

int32_t dtrun_context_has_evaluator(const dtrun_context* context) {
  const auto& servers = context->context.servers();
  return servers && servers->evaluator ? 1 : 0;
}

dtrun_error* dtrun_parameter_server_create(
    dtrun_context* context, const dtrun_tensor* variables, size_t variable_count,
    const dtrun_parameter_server_options* options, dtrun_parameter_server** server) {
  return Guard([&] {
    CheckNotNull(server, "server");
    const ServerJob& job = ServersOf(context);
    const auto told = ReadSized(options, "dtrun_default_parameter_server_options()");
    if (job.rank >= job.servers)
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(
              "rank ", job.rank, " is not a parameter server; expected a rank below ",
              job.servers));
    *server = new dtrun_parameter_server{
        .owner = context->owner,
        .server = {job, ReadTensors(variables, variable_count), PlanOf(told)}};
  });
}

size_t dtrun_parameter_server_shard_count(const dtrun_parameter_server* server) {
  return server->server.shards().size();
}

dtrun_error* dtrun_parameter_server_shard(
    const dtrun_parameter_server* server, size_t index, dtrun_parameter_shard* shard) {
  return Guard([&] {
    CheckNotNull(shard, "shard");
    const auto& used = Use(server, "server").server;
    CheckIndex(index, used.shards().size(), "shard");
    const dtrun::runtime::VariableShard& found = used.shards()[index];
    *shard = {
        .variable = found.variable,
        .first = found.first,
        .part = static_cast<uint64_t>(found.part),
        .parts = static_cast<uint64_t>(found.parts),
        .value = dtrun::detail::ToC(used.value(index))};
  });
}

dtrun_error* dtrun_parameter_server_start(
    dtrun_parameter_server* server, dtrun_parameter_update update, void* argument,
    const dtrun_tensor* state, size_t state_count) {
  return Guard([&] {
    CheckNotNull(reinterpret_cast<const void*>(update), "update");
    Use(server, "server")
        .server.Start(
            [update, argument](const std::vector<const void*>& gradients) {
              if (update(argument, gradients.data()) != 0)
                throw Error(ErrorCode::kInvalidArgument, "the update of a gradient has failed");
            },
            ReadTensors(state, state_count));
  });
}

dtrun_error* dtrun_parameter_server_wait(
    dtrun_parameter_server* server, uint64_t step, uint64_t* done) {
  return Guard([&] {
    const uint64_t reached = Use(server, "server").server.WaitFor(step);
    if (done != nullptr) *done = reached;
  });
}

dtrun_error* dtrun_parameter_server_finish(dtrun_parameter_server* server) {
  return Guard([&] { Use(server, "server").server.Finish(); });
}

dtrun_error* dtrun_parameter_server_read_statistics(
    const dtrun_parameter_server* server, dtrun_parameter_server_statistics* statistics) {
  return Guard([&] {
    CheckSize(statistics, "statistics", "dtrun_new_parameter_server_statistics()");
    const auto now = Use(server, "server").server.statistics();
    statistics->updates = now.updates;
    statistics->pulls = now.pulls;
    statistics->repeated_steps = now.repeated_steps;
    statistics->lost_workers = now.lost_workers;
    statistics->update_s = now.update_s;
    statistics->copy_s = now.copy_s;
    statistics->cpu_s = now.cpu_s;
  });
}

dtrun_error* dtrun_parameter_server_staleness(
    const dtrun_parameter_server* server, uint64_t* counts, size_t count, size_t* needed) {
  return Guard([&] {
    if (count > 0) CheckNotNull(counts, "counts");
    const std::vector<uint64_t> histogram = Use(server, "server").server.staleness();
    for (size_t s = 0; s < count; ++s) counts[s] = s < histogram.size() ? histogram[s] : 0;
    if (needed != nullptr) *needed = histogram.size();
  });
}

void dtrun_parameter_server_destroy(dtrun_parameter_server* server) { Destroy(server); }

dtrun_error* dtrun_parameter_client_create(
    dtrun_context* context, const dtrun_tensor* variables, size_t variable_count,
    uint64_t min_partition_bytes, int32_t role, dtrun_parameter_client** client) {
  return Guard([&] {
    CheckNotNull(client, "client");
    const ServerJob& job = ServersOf(context);
    if (role != DTRUN_WORKER && role != DTRUN_READER)
      throw Error(
          ErrorCode::kInvalidArgument,
          Text("role is ", role, "; expected DTRUN_WORKER or DTRUN_READER"));
    *client = new dtrun_parameter_client{
        .owner = context->owner,
        .variables = variable_count,
        .client = {
            job, ReadTensors(variables, variable_count), RuleOf(min_partition_bytes),
            role == DTRUN_WORKER ? dtrun::runtime::PeerRole::kWorker
                                 : dtrun::runtime::PeerRole::kReader}};
  });
}

dtrun_error* dtrun_parameter_client_value(
    const dtrun_parameter_client* client, size_t index, dtrun_buffer* buffer) {
  return Guard([&] {
    CheckNotNull(buffer, "buffer");
    const auto& used = Use(client, "client");
    CheckIndex(index, used.variables, "variable");
    *buffer = dtrun::detail::ToC(used.client.value(index));
  });
}

dtrun_error* dtrun_parameter_client_gradient(
    const dtrun_parameter_client* client, size_t index, dtrun_buffer* buffer) {
  return Guard([&] {
    CheckNotNull(buffer, "buffer");
    const auto& used = Use(client, "client");
    CheckIndex(index, used.variables, "variable");
    *buffer = dtrun::detail::ToC(used.client.gradient(index));
  });
}

dtrun_error* dtrun_parameter_client_next_step(
    dtrun_parameter_client* client, uint64_t* step, int32_t* ended) {
  return dtrun_parameter_client_next_step_in(client, 0, UINT64_MAX, step, ended);
}

dtrun_error* dtrun_parameter_client_next_step_in(
    dtrun_parameter_client* client, uint64_t first, uint64_t end, uint64_t* step, int32_t* ended) {
  return Guard([&] {
    CheckNotNull(step, "step");
    CheckNotNull(ended, "ended");
    const std::optional<uint64_t> next = Use(client, "client").client.NextStep(first, end);
    *step = next.value_or(0);
    *ended = next ? 0 : 1;
  });
}

dtrun_error* dtrun_parameter_client_pull(dtrun_parameter_client* client, uint64_t* version) {
  return Guard([&] {
    const uint64_t now = Use(client, "client").client.Pull();
    if (version != nullptr) *version = now;
  });
}

dtrun_error* dtrun_parameter_client_push(dtrun_parameter_client* client, uint64_t* staleness) {
  return Guard([&] {
    const uint64_t found = Use(client, "client").client.Push();
    if (staleness != nullptr) *staleness = found;
  });
}

dtrun_error* dtrun_parameter_client_read_state(
    dtrun_parameter_client* client, dtrun_tensor_file** state) {
  return Guard([&] {
    CheckNotNull(state, "state");
    *state = dtrun::runtime::c_api::NewTensorFile(Use(client, "client").client.ReadState());
  });
}

dtrun_error* dtrun_parameter_client_progress(
    dtrun_parameter_client* client, dtrun_parameter_progress* progress) {
  return Guard([&] {
    CheckSize(progress, "progress", "dtrun_new_parameter_progress()");
    const dtrun::runtime::ServerProgress now = Use(client, "client").client.Progress();
    progress->steps_done = now.steps_done;
    progress->steps = now.steps;
    progress->workers = now.workers;
    progress->finished = now.finished;
  });
}

void dtrun_parameter_client_destroy(dtrun_parameter_client* client) { Destroy(client); }
