/// The part of the C ABI about parameter servers: ranks that hold the variables of a model, while
/// others, the workers, push gradients to them and pull values from them, each at its own pace. A
/// part of <dtrun/c.h>, which includes it and says how errors, ownership and threads are.
#ifndef DTRUN_DETAIL_C_PARAMETER_SERVER_H_
#define DTRUN_DETAIL_C_PARAMETER_SERVER_H_

#include <dtrun/c.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dtrun_parameter_server dtrun_parameter_server;
typedef struct dtrun_parameter_client dtrun_parameter_client;

/// How many ranks hold variables (dtrun --ps): they are the first ones. 0: none.
///
/// In such a job every rank is a world of its own: dtrun_context_world has size 1, and nothing is
/// collective but what says so below. dtrun ends the job when a server is lost, and goes on when
/// another rank is.
DTRUN_API int32_t dtrun_context_parameter_servers(const dtrun_context* context);

enum {
  DTRUN_WORKER = 0,  ///< pulls values, pushes gradients, and is given steps to do
  DTRUN_READER = 1   ///< pulls values alone, such as for inference
};

/// Begin with `dtrun_default_parameter_server_options`: later versions may add members at the end.
typedef struct dtrun_parameter_server_options {
  uint64_t struct_bytes;         ///< of this struct, as the program was compiled with it
  uint64_t first_step;           ///< steps [first_step, steps) are handed out to workers
  uint64_t steps;                ///< the same on all servers, like all of this
  uint64_t max_staleness;        ///< of a gradient, in updates; UINT64_MAX: no bound
  uint64_t min_partition_bytes;  ///< of a part of a variable
  int32_t workers;               ///< ranks that are expected to be workers
  int32_t readers;               ///< and only to read, besides
} dtrun_parameter_server_options;

/// No step, no bound, parts of 256 KiB or more, one worker, no reader.
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

/// Elements [first, first + value.count) of a variable, whole rows of its first axis, which a
/// server holds.
typedef struct dtrun_parameter_shard {
  uint64_t variable;     ///< index
  uint64_t first;        ///< element
  uint64_t part, parts;  ///< which one, of how many that the variable is cut into
  dtrun_buffer value;
} dtrun_parameter_shard;

/// Updates the server's shards: `gradients[i]` is that of shard i. It is called on the server's
/// thread, calls nothing of dtrun and throws nothing. 0: done; otherwise the server gives up.
typedef int32_t (*dtrun_parameter_update)(void* argument, const void* const* gradients);

/// On each of the first ranks. The variables are the same on all ranks of the job, but for their
/// values: each server takes those of its shards as they are here. Variables are dealt round-robin;
/// one of at least twice `min_partition_bytes` is cut along its first axis, into as many parts as
/// there are servers at most. DTRUN_INVALID_ARGUMENT: this rank is no server, a variable or an
/// option is wrong.
DTRUN_API dtrun_error* dtrun_parameter_server_create(
    dtrun_context* context, const dtrun_tensor* variables, size_t variable_count,
    const dtrun_parameter_server_options* options, dtrun_parameter_server** server);
DTRUN_API size_t dtrun_parameter_server_shard_count(const dtrun_parameter_server* server);
/// Its value is the server's thread's from dtrun_parameter_server_start on.
DTRUN_API dtrun_error* dtrun_parameter_server_shard(
    const dtrun_parameter_server* server, size_t index, dtrun_parameter_shard* shard);
/// Begins to serve, in a thread of its own. `state` are tensors that `update` changes besides, such
/// as momentum; ranks can read them. They are there until the server is destroyed.
DTRUN_API dtrun_error* dtrun_parameter_server_start(
    dtrun_parameter_server* server, dtrun_parameter_update update, void* argument,
    const dtrun_tensor* state, size_t state_count);
/// On the first server: returns when `step` steps are done, or all of them. On another one: when
/// the first has finished. `*done` is how many are done. DTRUN_PEER_LOST: a server, or every
/// worker; DTRUN_MISMATCH: the servers have other variables; DTRUN_INVALID_ARGUMENT: the update has
/// failed.
DTRUN_API dtrun_error* dtrun_parameter_server_wait(
    dtrun_parameter_server* server, uint64_t step, uint64_t* done);
/// On the first server, after all that it has to save is saved: ends the others, and returns when
/// no client is left. One that is expected and has never come is waited for, for half a minute.
/// Elsewhere after dtrun_parameter_server_wait.
DTRUN_API dtrun_error* dtrun_parameter_server_finish(dtrun_parameter_server* server);

/// Begin with `dtrun_new_parameter_server_statistics`: later versions may add members at the end.
typedef struct dtrun_parameter_server_statistics {
  uint64_t struct_bytes;    ///< of this struct, as the program was compiled with it
  uint64_t updates;         ///< gradients applied
  uint64_t pulls;           ///< times that values were given
  uint64_t repeated_steps;  ///< handed out again, since a worker was lost
  uint64_t lost_workers;
  double update_s;  ///< seconds in updates
  double copy_s;    ///< seconds in copies of values
  double cpu_s;     ///< CPU time of the server's thread
} dtrun_parameter_server_statistics;

static inline dtrun_parameter_server_statistics dtrun_new_parameter_server_statistics(void) {
  dtrun_parameter_server_statistics statistics;
  statistics.struct_bytes = sizeof(dtrun_parameter_server_statistics);
  statistics.updates = statistics.pulls = 0;
  statistics.repeated_steps = statistics.lost_workers = 0;
  statistics.update_s = statistics.copy_s = statistics.cpu_s = 0;
  return statistics;
}

/// Any thread.
DTRUN_API dtrun_error* dtrun_parameter_server_read_statistics(
    const dtrun_parameter_server* server, dtrun_parameter_server_statistics* statistics);
/// `counts[s]`, of the first `count`: how many gradients had staleness s, updates between the
/// values that they were computed from and those that they were applied to. `*needed` is one more
/// than the largest staleness. Any thread.
DTRUN_API dtrun_error* dtrun_parameter_server_staleness(
    const dtrun_parameter_server* server, uint64_t* counts, size_t count, size_t* needed);
/// Stops serving, if that goes on: who is connected sees that a server is lost.
DTRUN_API void dtrun_parameter_server_destroy(dtrun_parameter_server* server);

/// On any rank: a worker, or a reader, of the variables that the servers have too. Returns when all
/// of them have let it in. DTRUN_MISMATCH: they have other variables; the text names the first one.
DTRUN_API dtrun_error* dtrun_parameter_client_create(
    dtrun_context* context, const dtrun_tensor* variables, size_t variable_count,
    uint64_t min_partition_bytes, int32_t role, dtrun_parameter_client** client);
/// Memory of the client's, 64-byte aligned: what a pull fills, and what a push takes.
DTRUN_API dtrun_error* dtrun_parameter_client_value(
    const dtrun_parameter_client* client, size_t index, dtrun_buffer* buffer);
DTRUN_API dtrun_error* dtrun_parameter_client_gradient(
    const dtrun_parameter_client* client, size_t index, dtrun_buffer* buffer);
/// A worker's step before is done; `*step` is the next one, `*ended` 1 when there is none left. A
/// step is handed out at least once: again when its worker is lost. It waits while others might
/// still lose theirs, and while as many steps are out as the bound of staleness allows.
DTRUN_API dtrun_error* dtrun_parameter_client_next_step(
    dtrun_parameter_client* client, uint64_t* step, int32_t* ended);
/// Fills all values. `*version` (may be NULL) is the number of updates of the first server's.
DTRUN_API dtrun_error* dtrun_parameter_client_pull(
    dtrun_parameter_client* client, uint64_t* version);
/// A worker's gradient of the values that it has pulled last; returns when all servers have applied
/// it. `*staleness` (may be NULL) is that of the first server.
DTRUN_API dtrun_error* dtrun_parameter_client_push(
    dtrun_parameter_client* client, uint64_t* staleness);
/// What all servers were started with as `state`, as it is now, server by server.
DTRUN_API dtrun_error* dtrun_parameter_client_read_state(
    dtrun_parameter_client* client, dtrun_tensor_file** state);

/// Begin with `dtrun_new_parameter_progress`: later versions may add members at the end.
typedef struct dtrun_parameter_progress {
  uint64_t struct_bytes;  ///< of this struct, as the program was compiled with it
  uint64_t steps_done, steps;
  uint64_t workers;   ///< connected now
  uint64_t finished;  ///< 1: the first server has finished, and has saved what it saves
} dtrun_parameter_progress;

static inline dtrun_parameter_progress dtrun_new_parameter_progress(void) {
  dtrun_parameter_progress progress;
  progress.struct_bytes = sizeof(dtrun_parameter_progress);
  progress.steps_done = progress.steps = progress.workers = progress.finished = 0;
  return progress;
}

DTRUN_API dtrun_error* dtrun_parameter_client_progress(
    dtrun_parameter_client* client, dtrun_parameter_progress* progress);
/// Leaves in good order.
DTRUN_API void dtrun_parameter_client_destroy(dtrun_parameter_client* client);

#ifdef __cplusplus
}
#endif

#endif
