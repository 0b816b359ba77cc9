#ifndef DTRUN_CONTEXT_H_
#define DTRUN_CONTEXT_H_

#include <dtrun/c.h>
#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtrun {

struct Host {
  std::string name;
  int slots;  ///< ranks on it
};

/// This process as a rank of its job: what `Init()` returns. Movable; outlives everything made from
/// it. Not thread-safe, but the world and its duplicates may each be used by a thread of their own.
class [[nodiscard]] Context {
 public:
  explicit Context(dtrun_context* handle)
      : handle_(handle), world_(dtrun_context_world(handle), Communicator::Ownership::kBorrowed) {}

  Topology topology() const { return dtrun_context_topology(handle_.get()); }
  int rank() const { return topology().rank; }
  int size() const { return topology().size; }
  int local_rank() const { return topology().local_rank; }
  int local_size() const { return topology().local_size; }
  int cross_rank() const { return topology().cross_rank; }
  int cross_size() const { return topology().cross_size; }

  /// Ranks that hold variables, the first ones (`dtrun --ps`); 0: a job like most. With them, every
  /// rank is a world of its own: see parameter_server.h.
  int parameter_servers() const { return dtrun_context_parameter_servers(handle_.get()); }

  /// In the order of the host list.
  std::vector<Host> hosts() const {
    std::vector<Host> hosts;
    for (int32_t i = 0; i < dtrun_context_host_count(handle_.get()); ++i) {
      hosts.push_back(
          {dtrun_context_host_name(handle_.get(), i), dtrun_context_host_slots(handle_.get(), i)});
    }
    return hosts;
  }

  /// Compute threads this rank should use, from the CPUs that are its own.
  int threads() const { return dtrun_context_threads(handle_.get()); }

  /// Width of the terminal that the user of the launcher looks at; 0 when output goes to a file or
  /// a pipe.
  int terminal_columns() const { return dtrun_context_terminal_columns(handle_.get()); }

  /// One line for people and logs: version, rank, how the ranks were joined, backend, threads,
  /// whether operations overlap with the caller's own work (and if not, why), options.
  std::string description() const { return dtrun_context_description(handle_.get()); }

  /// The value in use of an option of docs/reference/options.md; none for an unknown name.
  std::optional<std::string> option(const std::string& name) const {
    const char* value = dtrun_context_option(handle_.get(), name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }

  /// All ranks of the job.
  Communicator& world() { return world_; }

  /// How far this rank has come since its start: steps done, and examples that it has computed
  /// itself. Two stores to memory, for `dtrun --progress` to show. Without it steps are counted by
  /// the `Wait()` of each GradientReducer. Any thread.
  void ReportProgress(uint64_t step, uint64_t examples) {
    detail::Check(dtrun_report_progress(handle_.get(), step, examples));
  }

  /// Collective: from here on every rank writes down what it does, for `StopTimeline` to write into
  /// `path`, a file of rank 0: what is collective, each gradient's readiness, waits, all ranks in
  /// one file, on one clock. It takes at most 16 MiB of memory per rank; what does not fit is
  /// counted and dropped. kInvalidArgument while one is written already, also by `dtrun
  /// --timeline`; kSystem where rank 0 cannot write the file.
  void StartTimeline(const std::string& path) {
    detail::Check(dtrun_timeline_start(handle_.get(), path.c_str()));
  }
  /// Collective: the file is complete afterwards, and another one may be started. JSON in the trace
  /// event format of Chrome and Perfetto. `Shutdown()` does it too.
  void StopTimeline() { detail::Check(dtrun_timeline_stop(handle_.get())); }

  /// Throws kInvalidArgument unless the environment's TF_CONFIG, if there is one, describes this
  /// job: as many tasks as it has ranks, and this process one of them.
  void CheckTfConfig() const { detail::Check(dtrun_check_tf_config(handle_.get())); }

  /// Collective: ends the job in good order. Leaving without it is reported as this rank's mistake.
  /// Destroy what was made from this context before or after, but use none of it any more. All
  /// ranks may call Init again. In a process that was forked after Init it does nothing.
  void Shutdown() { detail::Check(dtrun_shutdown(handle_.get())); }

  /// For the C ABI; belongs to this object.
  dtrun_context* handle() const { return handle_.get(); }

 private:
  std::unique_ptr<dtrun_context, detail::Destroyer<dtrun_context, dtrun_context_destroy>> handle_;
  Communicator world_;
};

/// Options by name, as in docs/reference/options.md.
using Options = std::map<std::string, std::string>;

namespace detail {

/// Valid as long as `options`.
inline std::vector<dtrun_option> ToC(const Options& options) {
  std::vector<dtrun_option> list;
  for (const auto& option : options) list.push_back({option.first.c_str(), option.second.c_str()});
  return list;
}

}  // namespace detail

/// Makes this process a rank of its job: collective over all processes that one launcher started,
/// or that were started by hand on one host (docs/guides/embedding.md: how ranks find each other).
/// Started by nobody, it is a world of one and everything still works. `options` (see
/// docs/reference/options.md) win over the environment. Errors: kInvalidArgument (an option),
/// kMismatch (ranks differ in version or options), kUnavailable, kTimeout, kSystem.
inline Context Init(const Options& options = {}) {
  const std::vector<dtrun_option> list = detail::ToC(options);
  dtrun_context* context = nullptr;
  detail::Check(dtrun_init(list.data(), list.size(), &context));
  return Context(context);
}

/// GPUs this process can use; when there are none, `reason` (if not null) says why.
inline int CudaDeviceCount(std::string* reason = nullptr) {
  int32_t count = 0;
  dtrun_error* error = dtrun_cuda_device_count(&count);
  if (error != nullptr && reason != nullptr) *reason = dtrun_error_message(error);
  dtrun_error_destroy(error);
  return error != nullptr ? 0 : count;
}

}  // namespace dtrun

#endif
