#ifndef DTRUN_DETAIL_PARAMETER_CLIENT_H_
#define DTRUN_DETAIL_PARAMETER_CLIENT_H_

#include <dtrun/c.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/tensors.h>
#include <dtrun/types.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// Training with parameter servers: the first ranks of the job (`dtrun --ps N`) hold the variables
/// of a model and its optimizer; the others are workers, each of which pulls the values, computes a
/// gradient and pushes it, at its own pace. A job goes on when a worker is lost.
///
/// In such a job every rank is a world of its own (`job.world().size()` is 1), since whoever may be
/// lost can be in nobody's collective; `job.rank()` and `job.size()` are those of the job.
enum class ParameterRole {
  kServer,     ///< is a ParameterServer
  kWorker,     ///< is a ParameterWorker
  kEvaluator,  ///< the last rank, where there is one: scores checkpoints
};

/// The same on all ranks.
struct ParameterServerOptions {
  uint64_t first_step = 0;  ///< steps [first_step, steps) are handed out, to whoever asks first
  uint64_t steps = 0;
  /// Of a gradient: updates between the values that it was computed from and those that it is
  /// applied to. None: as it comes, about one less than there are workers.
  std::optional<uint64_t> max_staleness = {};
  /// A variable of at least twice this is cut along its first axis, into as many parts as there are
  /// servers at most.
  uint64_t min_partition_bytes = 256 * 1024;
  bool evaluator = false;  ///< the last rank is no worker
};

/// Ranks that are neither servers nor the evaluator.
inline int WorkersOf(const Context& job, const ParameterServerOptions& options) {
  return job.size() - job.parameter_servers() - (options.evaluator ? 1 : 0);
}

/// What this rank is. kInvalidArgument: the job has no parameter servers, or no rank would be a
/// worker.
inline ParameterRole RoleOf(const Context& job, const ParameterServerOptions& options = {}) {
  const int servers = job.parameter_servers();
  if (servers == 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        "this job has no parameter servers; start it with dtrun --ps N");
  if (WorkersOf(job, options) < 1)
    throw Error(
        ErrorCode::kInvalidArgument,
        "of " + std::to_string(job.size()) + " ranks, " + std::to_string(servers) +
            (servers == 1 ? " is a parameter server" : " are parameter servers") +
            " and one the evaluator; expected at least one more, a worker");
  if (job.rank() < servers) return ParameterRole::kServer;
  return options.evaluator && job.rank() == job.size() - 1 ? ParameterRole::kEvaluator
                                                           : ParameterRole::kWorker;
}

/// How far a job is.
struct ParameterProgress {
  uint64_t steps_done = 0, steps = 0;
  uint64_t workers = 0;   ///< connected now
  bool finished = false;  ///< nothing will be computed or saved any more
};

namespace detail {

/// A rank's end of all servers.
class ParameterConnection {
 public:
  ParameterConnection(
      Context& job, const std::vector<NamedTensor>& variables,
      const ParameterServerOptions& options, int32_t role) {
    RoleOf(job, options);  // complains
    const std::vector<dtrun_tensor> list = ToC(variables);
    dtrun_parameter_client* client = nullptr;
    Check(dtrun_parameter_client_create(
        job.handle(), list.data(), list.size(), options.min_partition_bytes, role, &client));
    handle_.reset(client);
  }

  dtrun_parameter_client* get() const { return handle_.get(); }
  Buffer value(size_t index) const {
    dtrun_buffer buffer{};
    Check(dtrun_parameter_client_value(get(), index, &buffer));
    return FromC(buffer);
  }
  Buffer gradient(size_t index) const {
    dtrun_buffer buffer{};
    Check(dtrun_parameter_client_gradient(get(), index, &buffer));
    return FromC(buffer);
  }
  uint64_t Pull() {
    uint64_t version = 0;
    Check(dtrun_parameter_client_pull(get(), &version));
    return version;
  }

 private:
  std::unique_ptr<
      dtrun_parameter_client, Destroyer<dtrun_parameter_client, dtrun_parameter_client_destroy>>
      handle_;
};

}  // namespace detail

/// A rank that computes gradients.
///
///   dtrun::ParameterWorker worker(job, variables, model.parameters(), options);
///   while (const auto step = worker.NextStep()) {
///     worker.Pull();
///     ...                 // compute the gradients of batch *step, of the values that are there
///     now worker.Push();
///   }
///
/// A step is handed out at least once: when its worker is lost before it has asked for the next
/// one, another worker gets it too, and its gradient may then have been applied already.
///
/// Errors: kPeerLost (a server; the text says how to go on), kTimeout, kMismatch (the servers have
/// other variables, the first of which is named), kSystem. After one it is of no use. Not
/// thread-safe.
class ParameterWorker {
 public:
  /// Returns when all servers are there. `variables` are those of the servers, and `parameters` the
  /// same in the same order. Their gradients get their memory here, where the servers of this host
  /// read them, as long as this object lives; values stay where they are.
  ParameterWorker(
      Context& job, const std::vector<NamedTensor>& variables, std::vector<Parameter>& parameters,
      const ParameterServerOptions& options = {})
      : connection_(job, variables, options, DTRUN_WORKER), parameters_(parameters) {
    CheckParameters(variables);
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].gradient = connection_.gradient(i);
  }
  ~ParameterWorker() {
    for (Parameter& parameter : parameters_)
      parameter.gradient = Buffer(nullptr, parameter.value.count, parameter.value.dtype);
  }
  ParameterWorker(const ParameterWorker&) = delete;
  ParameterWorker& operator=(const ParameterWorker&) = delete;

  /// The step before is done; the next one, or nothing when all are. Waits while others might still
  /// lose theirs, and while as many are out as `max_staleness` allows.
  std::optional<uint64_t> NextStep() {
    uint64_t step = 0;
    int32_t ended = 0;
    detail::Check(dtrun_parameter_client_next_step(connection_.get(), &step, &ended));
    return ended != 0 ? std::nullopt : std::optional<uint64_t>(step);
  }
  /// Fills the values of all parameters. How many updates the first server had done.
  uint64_t Pull() {
    const uint64_t version = connection_.Pull();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Buffer& value = parameters_[i].value;
      if (value.count > 0) std::memcpy(value.data, connection_.value(i).data, value.bytes());
    }
    return version;
  }
  /// Returns when all servers have applied the gradients. Their staleness on the first one.
  uint64_t Push() {
    uint64_t staleness = 0;
    detail::Check(dtrun_parameter_client_push(connection_.get(), &staleness));
    return staleness;
  }

 private:
  void CheckParameters(const std::vector<NamedTensor>& variables) const {
    bool same = variables.size() == parameters_.size();
    for (size_t i = 0; same && i < variables.size(); ++i)
      same = variables[i].buffer.count == parameters_[i].value.count &&
             variables[i].buffer.dtype == parameters_[i].value.dtype;
    if (!same)
      throw Error(
          ErrorCode::kInvalidArgument, "the parameters of a ParameterWorker are not its variables");
  }

  detail::ParameterConnection connection_;
  std::vector<Parameter>& parameters_;
};

/// A rank that reads the variables while others train them, such as for inference. Errors are those
/// of ParameterWorker.
class ParameterReader {
 public:
  /// Returns when all servers are there.
  ParameterReader(
      Context& job, const std::vector<NamedTensor>& variables,
      const ParameterServerOptions& options = {})
      : connection_(job, variables, options, DTRUN_READER), variables_(variables) {}

  /// Fills the buffers of the variables. How many updates the first server had done.
  uint64_t Pull() {
    const uint64_t version = connection_.Pull();
    for (size_t i = 0; i < variables_.size(); ++i) {
      const Buffer& buffer = variables_[i].buffer;
      if (buffer.count > 0) std::memcpy(buffer.data, connection_.value(i).data, buffer.bytes());
    }
    return version;
  }
  /// What the servers' optimizers keep, server by server, named by shard.
  TensorFile ReadState() {
    dtrun_tensor_file* state = nullptr;
    detail::Check(dtrun_parameter_client_read_state(connection_.get(), &state));
    return TensorFile(state);
  }
  ParameterProgress progress() {
    dtrun_parameter_progress told = dtrun_new_parameter_progress();
    detail::Check(dtrun_parameter_client_progress(connection_.get(), &told));
    return {told.steps_done, told.steps, told.workers, told.finished != 0};
  }

 private:
  detail::ParameterConnection connection_;
  std::vector<NamedTensor> variables_;
};

}  // namespace dtrun

#endif
