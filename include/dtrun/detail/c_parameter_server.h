/// \file
/// The part of the C ABI about parameter servers. Parameter servers are ranks that hold the
/// variables of a model. The other ranks, the workers, pull values and push gradients, each at its
/// own pace. <dtrun/c.h> includes this file, and its rules for errors, ownership and threads hold
/// here.
#ifndef DTRUN_DETAIL_C_PARAMETER_SERVER_H_
#define DTRUN_DETAIL_C_PARAMETER_SERVER_H_

#include <dtrun/c.h>

#ifdef __cplusplus
extern "C" {
#endif

/// A parameter server: holds shards of the variables, and updates them in a thread.
typedef struct dtrun_parameter_server dtrun_parameter_server;
/// A worker or a reader, connected to all servers.
typedef struct dtrun_parameter_client dtrun_parameter_client;

/// The number of parameter servers (dtrun --ps). They are the first ranks. 0: none.
///
/// In a job with parameter servers, every rank is a world of one: dtrun_context_world has size 1.
/// Only functions that say so are collective. If a server is lost, dtrun ends the job. If another
/// rank is lost, the job continues.
DTRUN_API int32_t dtrun_context_parameter_servers(const dtrun_context* context);
/// 1 if TF_CONFIG gives a job with parameter servers an evaluator, the last rank; otherwise 0.
DTRUN_API int32_t dtrun_context_has_evaluator(const dtrun_context* context);

/// The role of a client.
enum {
  DTRUN_WORKER = 0,  ///< pulls values, pushes gradients, and gets steps to do
  DTRUN_READER = 1   ///< only pulls values, for example for inference
};

/// The options of a parameter server, the same on all servers. Begin with
/// `dtrun_default_parameter_server_options`: later versions may add members at the end.
typedef struct dtrun_parameter_server_options {
  uint64_t struct_bytes;         ///< size of this struct in the calling program
  uint64_t first_step;           ///< steps [first_step, steps) are handed out to workers
  uint64_t steps;                ///< the end of the steps, or DTRUN_OPEN_STEPS
  uint64_t max_staleness;        ///< of a gradient, in updates; UINT64_MAX: no bound
  uint64_t min_partition_bytes;  ///< the least size of a part, or a dtrun_partition_...
  int32_t workers;               ///< the number of workers to expect
  int32_t readers;               ///< the number of readers to expect
} dtrun_parameter_server_options;

/// As `steps`: the number of steps is not known before. Workers get the steps that they ask for,
/// and the training ends when all workers have disconnected in good order.
#define DTRUN_OPEN_STEPS UINT64_MAX

/// As `min_partition_bytes`: variables are cut into parts of at most `bytes` bytes. A part has at
/// least one row.
static inline uint64_t dtrun_partition_of_max_bytes(uint64_t bytes) {
  return UINT64_C(1) << 62 | (bytes & (UINT64_MAX >> 2));
}
/// As `min_partition_bytes`: each variable is cut into `parts` parts, at most one for each row.
static inline uint64_t dtrun_partition_of_parts(uint64_t parts) {
  return UINT64_C(1) << 63 | (parts & (UINT64_MAX >> 2));
}

/// No steps, no bound, parts of at least 256 KiB, one worker, no reader.
static inline dtrun_parameter_server_options dtrun_default_parameter_server_options(void) {
  dtrun_parameter_server_options options;
  options.struct_bytes = sizeof(dtrun_parameter_server_options);
  options.first_step = options.steps = 0;
  options.max_staleness = UINT64_MAX;
  options.min_partition_bytes = 256 * 1024;
  options.workers = 1;
  options.readers = 0;
  return options;
}

/// The elements [first, first + value.count) of a variable, which one server holds. They are whole
/// rows of the variable's first axis.
typedef struct dtrun_parameter_shard {
  uint64_t variable;   ///< index
  uint64_t first;      ///< element
  uint64_t part,       ///< number of this part, from 0
      parts;           ///< number of parts of the variable
  dtrun_buffer value;  ///< the elements, in the server's memory
} dtrun_parameter_shard;

/// Updates the server's shards: `gradients[i]` is the gradient of shard i. It runs on the server's
/// thread. It does not call dtrun, and throws no exception. It returns 0 for success. After any
/// other number the server gives up.
typedef int32_t (*dtrun_parameter_update)(void* argument, const void* const* gradients);

/// Creates a server, on each of the first ranks. The variables are the same on all ranks of the
/// job, except for their values. The values here are the initial values of this server's shards.
/// Variables are dealt to the servers round-robin. A variable of at least twice
/// `min_partition_bytes` is cut along its first axis into at most one part per server.
/// DTRUN_INVALID_ARGUMENT: this rank is not a server, or a variable or an option is wrong.
DTRUN_API dtrun_error* dtrun_parameter_server_create(
    dtrun_context* context, const dtrun_tensor* variables, size_t variable_count,
    const dtrun_parameter_server_options* options, dtrun_parameter_server** server);
/// The number of shards of this server.
DTRUN_API size_t dtrun_parameter_server_shard_count(const dtrun_parameter_server* server);
/// Describes shard `index`. From dtrun_parameter_server_start on, its value belongs to the server's
/// thread. DTRUN_INVALID_ARGUMENT: there is no shard `index`.
DTRUN_API dtrun_error* dtrun_parameter_server_shard(
    const dtrun_parameter_server* server, size_t index, dtrun_parameter_shard* shard);
/// Starts to serve, in a thread. `state` has the other tensors that `update` changes, for example
/// momentum. Ranks can read them. They stay valid until the server is destroyed.
DTRUN_API dtrun_error* dtrun_parameter_server_start(
    dtrun_parameter_server* server, dtrun_parameter_update update, void* argument,
    const dtrun_tensor* state, size_t state_count);
/// On the first server: returns when `step` steps, or all steps, are done. On other servers:
/// returns when the first server has finished. `*done` is the number of done steps.
/// DTRUN_PEER_LOST: a server, or all workers, are lost. DTRUN_MISMATCH: the servers have different
/// variables. DTRUN_INVALID_ARGUMENT: the update has failed.
DTRUN_API dtrun_error* dtrun_parameter_server_wait(
    dtrun_parameter_server* server, uint64_t step, uint64_t* done);
/// On the first server, call it after everything is saved. It ends the other servers and returns
/// when no client is connected. It waits up to 30 s for expected clients that have never connected.
/// On other servers, call it after dtrun_parameter_server_wait.
DTRUN_API dtrun_error* dtrun_parameter_server_finish(dtrun_parameter_server* server);

/// The statistics of a server. Begin with `dtrun_new_parameter_server_statistics`: later versions
/// may add members at the end.
typedef struct dtrun_parameter_server_statistics {
  uint64_t struct_bytes;    ///< size of this struct in the calling program
  uint64_t updates;         ///< gradients applied
  uint64_t pulls;           ///< times that values were sent
  uint64_t repeated_steps;  ///< handed out again because a worker was lost
  uint64_t lost_workers;    ///< workers lost before the end, counted on the first server
  double update_s;          ///< seconds in updates
  double copy_s;            ///< seconds in copies of values
  double cpu_s;             ///< CPU time of the server's thread
} dtrun_parameter_server_statistics;

/// Statistics to be filled in, with `struct_bytes` set.
static inline dtrun_parameter_server_statistics dtrun_new_parameter_server_statistics(void) {
  dtrun_parameter_server_statistics statistics;
  statistics.struct_bytes = sizeof(dtrun_parameter_server_statistics);
  statistics.updates = statistics.pulls = 0;
  statistics.repeated_steps = statistics.lost_workers = 0;
  statistics.update_s = statistics.copy_s = statistics.cpu_s = 0;
  return statistics;
}

/// Fills `statistics` with the counters and times so far. Any thread.
DTRUN_API dtrun_error* dtrun_parameter_server_read_statistics(
    const dtrun_parameter_server* server, dtrun_parameter_server_statistics* statistics);
/// Sets `counts[s]`, for the first `count` values of s, to the number of gradients with staleness
/// s. The staleness is the number of updates between the values that a gradient was computed from
/// and the values that it was applied to. `*needed` is the largest staleness plus one. Any thread.
DTRUN_API dtrun_error* dtrun_parameter_server_staleness(
    const dtrun_parameter_server* server, uint64_t* counts, size_t count, size_t* needed);
/// Stops serving. If the server was still serving, connected ranks see it as lost.
DTRUN_API void dtrun_parameter_server_destroy(dtrun_parameter_server* server);

/// Connects a worker or a reader to all servers. The variables are the same as on the servers.
/// Returns when all servers have accepted the client. DTRUN_MISMATCH: the servers have other
/// variables; the text names the first variable that differs.
DTRUN_API dtrun_error* dtrun_parameter_client_create(
    dtrun_context* context, const dtrun_tensor* variables, size_t variable_count,
    uint64_t min_partition_bytes, int32_t role, dtrun_parameter_client** client);
/// The client's memory for the value of variable `index`, 64-byte aligned. A pull fills it. Valid
/// as long as the client. DTRUN_INVALID_ARGUMENT: there is no variable `index`.
DTRUN_API dtrun_error* dtrun_parameter_client_value(
    const dtrun_parameter_client* client, size_t index, dtrun_buffer* buffer);
/// The client's memory for the gradient of variable `index`, 64-byte aligned. A push sends it.
/// Valid as long as the client. DTRUN_INVALID_ARGUMENT: there is no variable `index`.
DTRUN_API dtrun_error* dtrun_parameter_client_gradient(
    const dtrun_parameter_client* client, size_t index, dtrun_buffer* buffer);
/// Declares the worker's previous step done, and returns the next one in `*step`. `*ended` is 1
/// when there is none left. A step is handed out at least once, and again if its worker is lost. If
/// no step is left but other workers still have steps, the call waits, because those workers may be
/// lost. It also waits while the staleness bound allows no further step.
DTRUN_API dtrun_error* dtrun_parameter_client_next_step(
    dtrun_parameter_client* client, uint64_t* step, int32_t* ended);
/// The same for the steps in [first, end). `*ended` is 1 when all steps below `end` are done. From
/// then on, no worker gets a step below `first`.
DTRUN_API dtrun_error* dtrun_parameter_client_next_step_in(
    dtrun_parameter_client* client, uint64_t first, uint64_t end, uint64_t* step, int32_t* ended);
/// Fills all values. `*version` (may be NULL) is the number of updates on the first server.
DTRUN_API dtrun_error* dtrun_parameter_client_pull(
    dtrun_parameter_client* client, uint64_t* version);
/// Pushes a worker's gradients, which belong to the values of its last pull. Returns when all
/// servers have applied them. `*staleness` (may be NULL) is the staleness on the first server.
DTRUN_API dtrun_error* dtrun_parameter_client_push(
    dtrun_parameter_client* client, uint64_t* staleness);
/// Reads the present values of the servers' `state` (dtrun_parameter_server_start), server by
/// server.
DTRUN_API dtrun_error* dtrun_parameter_client_read_state(
    dtrun_parameter_client* client, dtrun_tensor_file** state);

/// The progress of a job. Begin with `dtrun_new_parameter_progress`: later versions may add members
/// at the end.
typedef struct dtrun_parameter_progress {
  uint64_t struct_bytes;  ///< size of this struct in the calling program
  uint64_t steps_done,    ///< number of done steps, with those before `first_step`
      steps;              ///< number of all steps
  uint64_t workers;       ///< connected now
  uint64_t finished;      ///< 1: the first server has finished, and has saved everything
} dtrun_parameter_progress;

/// Progress to be filled in, with `struct_bytes` set.
static inline dtrun_parameter_progress dtrun_new_parameter_progress(void) {
  dtrun_parameter_progress progress;
  progress.struct_bytes = sizeof(dtrun_parameter_progress);
  progress.steps_done = progress.steps = progress.workers = progress.finished = 0;
  return progress;
}

/// Asks the first server for the progress of the job.
DTRUN_API dtrun_error* dtrun_parameter_client_progress(
    dtrun_parameter_client* client, dtrun_parameter_progress* progress);
/// Disconnects in good order.
DTRUN_API void dtrun_parameter_client_destroy(dtrun_parameter_client* client);

#ifdef __cplusplus
}
#endif

#endif
