#ifndef DTRUN_CONTEXT_H_
#define DTRUN_CONTEXT_H_

#include <dtrun/c.h>
#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtrun {

/// A host of the job, with its number of ranks.
struct Host {
  std::string name;  ///< as in the host list
  int slots;         ///< ranks on this host
};

/// A state that Context::KeepState has kept.
struct KeptStep {
  uint64_t step = 0;  ///< that it belongs to
  std::string state;  ///< the bytes of KeepState
};

/// This process as a rank of its job, as returned by `Init()`. Movable. It outlives all objects
/// made from it. Not thread-safe, but separate threads may use the world and each of its
/// duplicates.
class [[nodiscard]] Context {
 public:
  /// Takes ownership of `handle`. To get a Context, call `Init()`.
  explicit Context(dtrun_context* handle)
      : handle_(handle), world_(dtrun_context_world(handle), Communicator::Ownership::kBorrowed) {}

  /// The place of this process among the ranks of the job.
  Topology topology() const { return dtrun_context_topology(handle_.get()); }
  /// The rank of this process in the job, from 0.
  int rank() const { return topology().rank; }
  /// The number of ranks in the job.
  int size() const { return topology().size; }
  /// The number of lower ranks on this host.
  int local_rank() const { return topology().local_rank; }
  /// The number of ranks on this host.
  int local_size() const { return topology().local_size; }
  /// The number of lower hosts that have a rank with this local_rank().
  int cross_rank() const { return topology().cross_rank; }
  /// The number of hosts that have a rank with this local_rank().
  int cross_size() const { return topology().cross_size; }

  /// The number of parameter servers (`dtrun --ps`). The first ranks of the job are the servers,
  /// which hold the variables. In most jobs it is 0. In a job with parameter servers, the world of
  /// each rank has only that rank: see parameter_server.h.
  int parameter_servers() const { return dtrun_context_parameter_servers(handle_.get()); }
  /// True if TF_CONFIG gives a job with parameter servers an evaluator, the last rank.
  bool has_evaluator() const { return dtrun_context_has_evaluator(handle_.get()) != 0; }

  /// The number of ranks that the job had at its start. With `dtrun --min-np`, size() may change:
  /// a global batch of `batch * launch_size()` examples does not.
  int launch_size() const { return dtrun_context_launch_size(handle_.get()); }
  /// The epoch of the job: it grows when ranks are lost, and when ranks come. 0: neither has
  /// happened before this process joined the job. See elastic.h.
  uint32_t losses() const { return dtrun_context_epoch(handle_.get()); }

  /// Whether this rank is to call KeepState after each step: the first rank of each host, if a loss
  /// ends all processes of the job (`dtrun --restarts` with mpirun). An Elastic does this itself.
  bool keeps_state() const { return dtrun_context_keeps_state(handle_.get()) != 0; }
  /// Keeps `state`, of step `step`, in memory of this host for the processes that come after a
  /// loss. `name` is the caller's name for the training. Replaces the state kept before. Without
  /// room in /dev/shm, logs a warning once and leaves the state before. Local.
  void KeepState(const std::string& name, uint64_t step, const std::string& state) {
    detail::Check(dtrun_keep_state(handle_.get(), name.c_str(), step, state.data(), state.size()));
  }
  /// The state that an earlier process of this host has kept under `name`; nullopt: none. On
  /// another host it may be a step older or newer. Local.
  std::optional<KeptStep> LoadState(const std::string& name) {
    const void* state = nullptr;
    size_t bytes = 0;
    KeptStep kept;
    detail::Check(dtrun_load_state(handle_.get(), name.c_str(), &kept.step, &state, &bytes));
    if (state == nullptr) return std::nullopt;
    kept.state.assign(static_cast<const char*>(state), bytes);
    return kept;
  }

  /// The hosts, in the order of the host list.
  std::vector<Host> hosts() const {
    std::vector<Host> hosts;
    for (int32_t i = 0; i < dtrun_context_host_count(handle_.get()); ++i) {
      hosts.push_back(
          {dtrun_context_host_name(handle_.get(), i), dtrun_context_host_slots(handle_.get(), i)});
    }
    return hosts;
  }

  /// The index in `hosts()` of the host of this rank, with the rank's number of the launch, as
  /// `Error::ranks()` has it. nullopt: the job has no such rank.
  std::optional<int> host_of(int rank) const {
    const int32_t host = dtrun_context_host_of_rank(handle_.get(), rank);
    return host < 0 ? std::nullopt : std::optional<int>(host);
  }

  /// The number of compute threads that this rank should use, from the CPUs that it may run on.
  int threads() const { return dtrun_context_threads(handle_.get()); }

  /// The width of the user's terminal, in columns. 0 if the output goes to a file or a pipe.
  int terminal_columns() const { return dtrun_context_terminal_columns(handle_.get()); }

  /// One line for people and logs: version, rank, the way the ranks were joined, backend, threads,
  /// options, and whether operations overlap with the caller's own work (and if not, why).
  std::string description() const { return dtrun_context_description(handle_.get()); }

  /// The value in use of an option of docs/reference/options.md. nullopt for an unknown name.
  std::optional<std::string> option(const std::string& name) const {
    const char* value = dtrun_context_option(handle_.get(), name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }

  /// The communicator of all ranks of the job.
  Communicator& world() { return world_; }

  /// Reports the progress of this rank since its start, for `dtrun --progress`: the steps done, and
  /// the examples that this rank has computed. If a rank reports nothing, each `Wait()` of a
  /// GradientReducer counts as a step, and so does each step of a ShardedOptimizer. The cost is two
  /// stores to memory. Any thread.
  void ReportProgress(uint64_t step, uint64_t examples) {
    detail::Check(dtrun_report_progress(handle_.get(), step, examples));
  }

  /// Collective: starts a timeline of all ranks in one file, on one clock. From here on, every rank
  /// records its collectives, its waits, and the moments when its gradients are ready. The records
  /// of a rank take at most 16 MiB of memory; further records are counted and dropped.
  /// `StopTimeline` writes the timeline into `path`, a file of rank 0.
  ///
  /// Errors: kInvalidArgument (a timeline is already running, from here or from `dtrun
  /// --timeline`), kSystem (rank 0 cannot write the file), kUnavailable (the job has parameter
  /// servers).
  void StartTimeline(const std::string& path) {
    detail::Check(dtrun_timeline_start(handle_.get(), path.c_str()));
  }
  /// Collective: completes the file. Then another timeline may be started. The file is JSON in the
  /// trace event format of Chrome and Perfetto. `Shutdown()` stops a running timeline.
  void StopTimeline() { detail::Check(dtrun_timeline_stop(handle_.get())); }

  /// Throws kInvalidArgument if the environment variable TF_CONFIG is set and does not describe
  /// this job: as many tasks as the job has ranks, and this process as one of the tasks.
  void CheckTfConfig() const { detail::Check(dtrun_check_tf_config(handle_.get())); }

  /// Collective: ends the job in good order. If a rank ends without Shutdown, this is reported as a
  /// mistake of that rank. Afterwards, objects made from this context may only be destroyed. All
  /// ranks may call Init again. In a process that was forked after Init, Shutdown does nothing.
  void Shutdown() { detail::Check(dtrun_shutdown(handle_.get())); }

  /// The handle for the C ABI. It belongs to this object.
  dtrun_context* handle() const { return handle_.get(); }

 private:
  std::unique_ptr<dtrun_context, detail::Destroyer<dtrun_context, dtrun_context_destroy>> handle_;
  Communicator world_;
};

/// Options by name, as in docs/reference/options.md.
using Options = std::map<std::string, std::string>;

namespace detail {

/// The result is valid as long as `options`.
inline std::vector<dtrun_option> ToC(const Options& options) {
  std::vector<dtrun_option> list;
  for (const auto& option : options) list.push_back({option.first.c_str(), option.second.c_str()});
  return list;
}

}  // namespace detail

/// Makes this process a rank of its job. Collective over all processes that one launcher started,
/// or that were started by hand (docs/guides/embedding.md: how ranks find each other). A process
/// that was started alone is a world of one rank, in which everything works. `options` (see
/// docs/reference/options.md) win over the environment. Errors: kInvalidArgument (an option),
/// kMismatch (ranks differ in version or options), kUnavailable, kTimeout, kSystem.
inline Context Init(const Options& options = {}) {
  const std::vector<dtrun_option> list = detail::ToC(options);
  dtrun_context* context = nullptr;
  detail::Check(dtrun_init(list.data(), list.size(), &context));
  return Context(context);
}

/// The number of GPUs that this process can use. If there are none, `reason` (if not null) says
/// why.
inline int CudaDeviceCount(std::string* reason = nullptr) {
  int32_t count = 0;
  dtrun_error* error = dtrun_cuda_device_count(&count);
  if (error != nullptr && reason != nullptr) *reason = dtrun_error_message(error);
  dtrun_error_destroy(error);
  return error != nullptr ? 0 : count;
}

}  // namespace dtrun

#endif
