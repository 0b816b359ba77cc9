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

/// Roles in a job with parameter servers. The first ranks of the job (`dtrun --ps N`) hold the
/// variables of a model and its optimizer. The other ranks are workers: each pulls the values,
/// computes a gradient and pushes it, at its own pace. If a worker is lost, the job continues.
///
/// A rank that may be lost cannot take part in collectives. Therefore every rank is a world of one
/// (`job.world().size()` is 1). `job.rank()` and `job.size()` are those of the job.
enum class ParameterRole {
  kServer,     ///< runs a ParameterServer
  kWorker,     ///< runs a ParameterWorker
  kEvaluator,  ///< the last rank, if the job has an evaluator: evaluates checkpoints
};

/// The rule that cuts variables along their first axis into parts. The parts are dealt to the
/// servers round-robin. A part has at least one row. If the rows do not divide evenly, the first
/// parts have one more row.
///
///   13 rows in 5 parts   ->   3, 3, 3, 2, 2
class Partitioner {
 public:
  /// Parts of at least `bytes` bytes, at most one for each server.
  static Partitioner MinSize(uint64_t bytes = 256 * 1024) { return Partitioner(bytes); }
  /// Parts of at most `bytes` bytes, which is more than 0.
  static Partitioner MaxSize(uint64_t bytes) {
    return Partitioner(dtrun_partition_of_max_bytes(Positive(bytes)));
  }
  /// `parts` parts of each variable, at least 1.
  static Partitioner FixedShards(uint64_t parts) {
    return Partitioner(dtrun_partition_of_parts(Positive(parts)));
  }
  /// No variable is cut.
  static Partitioner None() { return Partitioner(UINT64_MAX); }

  /// The rule for the C ABI: `min_partition_bytes` of dtrun_parameter_server_options.
  uint64_t ToC() const { return told_; }

 private:
  explicit Partitioner(uint64_t told) : told_(told) {}
  static uint64_t Positive(uint64_t number) {
    if (number > 0) return number;
    throw Error(ErrorCode::kInvalidArgument, "partitioner: found 0; expected at least 1");
  }

  uint64_t told_;
};

/// As `ParameterServerOptions::steps`: the number of steps is not known before. Workers get the
/// steps that they ask for, and the training ends when all workers have left.
constexpr uint64_t kOpenSteps = DTRUN_OPEN_STEPS;

/// The options of the servers and the workers. The same on all ranks.
struct ParameterServerOptions {
  uint64_t first_step = 0;      ///< steps [first_step, steps) are handed out to workers on demand
  uint64_t steps = kOpenSteps;  ///< the end of the steps
  /// The largest staleness of a gradient: the number of updates between the values that it was
  /// computed from and the values that it is applied to. nullopt: no bound. The staleness is then
  /// about the number of workers minus one.
  std::optional<uint64_t> max_staleness = {};
  Partitioner partitioner = Partitioner::MinSize();  ///< cuts large variables
  bool evaluator = false;  ///< the last rank is not a worker; true if TF_CONFIG has an evaluator
};

/// True if the last rank is an evaluator, by the options or by TF_CONFIG.
inline bool HasEvaluator(const Context& job, const ParameterServerOptions& options) {
  return options.evaluator || job.has_evaluator();
}

/// The number of ranks that are neither servers nor the evaluator.
inline int WorkersOf(const Context& job, const ParameterServerOptions& options) {
  return job.size() - job.parameter_servers() - (HasEvaluator(job, options) ? 1 : 0);
}

/// The role of this rank. kInvalidArgument: the job has no parameter servers, or no rank would be a
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
  return HasEvaluator(job, options) && job.rank() == job.size() - 1 ? ParameterRole::kEvaluator
                                                                    : ParameterRole::kWorker;
}

/// The progress of a job.
struct ParameterProgress {
  uint64_t steps_done = 0,  ///< number of done steps, with those before `first_step`
      steps = 0;            ///< number of all steps
  uint64_t workers = 0;     ///< connected now
  bool finished = false;    ///< no step and no checkpoint will follow
};

namespace detail {

/// A rank's connections to all servers.
class ParameterConnection {
 public:
  ParameterConnection(
      Context& job, const std::vector<NamedTensor>& variables,
      const ParameterServerOptions& options, int32_t role) {
    RoleOf(job, options);  // throws if this rank has no role
    const std::vector<dtrun_tensor> list = ToC(variables);
    dtrun_parameter_client* client = nullptr;
    Check(dtrun_parameter_client_create(
        job.handle(), list.data(), list.size(), options.partitioner.ToC(), role, &client));
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
  TensorFile ReadState() {
    dtrun_tensor_file* state = nullptr;
    Check(dtrun_parameter_client_read_state(get(), &state));
    return TensorFile(state);
  }
  ParameterProgress progress() {
    dtrun_parameter_progress told = dtrun_new_parameter_progress();
    Check(dtrun_parameter_client_progress(get(), &told));
    return {told.steps_done, told.steps, told.workers, told.finished != 0};
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
///     ...                 // compute the gradients of batch *step from the pulled values
///     worker.Push();
///   }
///
/// A step is handed out at least once. If its worker is lost before it asks for the next step,
/// another worker gets the step too. The lost worker's gradient may already have been applied.
///
/// Errors: kPeerLost (a server; the text says how to continue), kTimeout, kMismatch (the servers
/// have other variables; the text names the first variable that differs), kSystem. After an error
/// the worker is unusable. Not thread-safe.
class ParameterWorker {
 public:
  /// Returns when all servers are connected. `variables` are those of the servers, and `parameters`
  /// are the same in the same order. Further variables, of f64, are settings: see SetSettings.
  ///
  /// This object gives memory to gradients that have none. The servers of this host read that
  /// memory, which is valid as long as this object. Values stay at their place.
  ParameterWorker(
      Context& job, const std::vector<NamedTensor>& variables, std::vector<Parameter>& parameters,
      const ParameterServerOptions& options = {})
      : connection_(job, variables, options, DTRUN_WORKER),
        parameters_(parameters),
        given_(parameters.size(), false) {
    CheckParameters(variables);
    for (size_t i = parameters.size(); i < variables.size(); ++i)
      settings_.push_back(connection_.gradient(i));
    for (size_t i = 0; i < parameters.size(); ++i) {
      given_[i] = parameters[i].gradient.data == nullptr;
      if (given_[i]) parameters[i].gradient = connection_.gradient(i);
    }
  }
  ~ParameterWorker() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      if (given_[i])
        parameter.gradient = Buffer(nullptr, parameter.value.count, parameter.value.dtype);
    }
  }
  ParameterWorker(const ParameterWorker&) = delete;
  ParameterWorker& operator=(const ParameterWorker&) = delete;

  /// Declares the previous step done, and returns the next one; nullopt when all steps are done. If
  /// no step is left but other workers still have steps, the call waits, because those workers may
  /// be lost. It also waits while `max_staleness` allows no further step.
  std::optional<uint64_t> NextStep() { return NextStepIn(0, UINT64_MAX); }
  /// The same for the steps in [first, end), for example of an epoch; nullopt when all steps below
  /// `end` are done. From then on, no worker gets a step below `first`.
  std::optional<uint64_t> NextStepIn(uint64_t first, uint64_t end) {
    uint64_t step = 0;
    int32_t ended = 0;
    detail::Check(
        dtrun_parameter_client_next_step_in(connection_.get(), first, end, &step, &ended));
    return ended != 0 ? std::nullopt : std::optional<uint64_t>(step);
  }
  /// Fills the values of all parameters. Returns the number of updates on the first server.
  uint64_t Pull() {
    const uint64_t version = connection_.Pull();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Buffer& value = parameters_[i].value;
      if (value.count > 0) std::memcpy(value.data, connection_.value(i).data, value.bytes());
    }
    return version;
  }
  /// Sets the numbers that the next gradient is applied with (Optimizer::step_settings). Each
  /// further variable holds all of them.
  void SetSettings(const std::vector<double>& settings) {
    for (size_t i = 0; i < settings_.size(); ++i)
      std::memcpy(settings_[i].data, settings.data(), settings_[i].bytes());
  }
  /// Pushes the gradients. Returns their staleness on the first server, when all servers have
  /// applied them.
  uint64_t Push() {
    uint64_t staleness = 0;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Buffer& own = parameters_[i].gradient;
      if (!given_[i] && own.count > 0)
        std::memcpy(connection_.gradient(i).data, own.data, own.bytes());
    }
    detail::Check(dtrun_parameter_client_push(connection_.get(), &staleness));
    return staleness;
  }
  /// Reads the state of the servers' optimizers, server by server, with the names of the shards.
  TensorFile ReadState() { return connection_.ReadState(); }
  /// Asks the first server for the progress of the job.
  ParameterProgress progress() { return connection_.progress(); }

 private:
  void CheckParameters(const std::vector<NamedTensor>& variables) const {
    for (const Parameter& parameter : parameters_)
      if (parameter.value.device >= 0)
        throw Error(
            ErrorCode::kUnavailable, "ParameterWorker: parameter '" + parameter.name +
                                         "' lies on GPU " + std::to_string(parameter.value.device) +
                                         "; expected host memory");
    bool same = variables.size() >= parameters_.size();
    for (size_t i = 0; same && i < parameters_.size(); ++i)
      same = variables[i].buffer.count == parameters_[i].value.count &&
             variables[i].buffer.dtype == parameters_[i].value.dtype;
    if (!same)
      throw Error(
          ErrorCode::kInvalidArgument,
          "the parameters of a ParameterWorker differ from its variables; expected the same counts "
          "and dtypes in the same order");
  }

  detail::ParameterConnection connection_;
  std::vector<Parameter>& parameters_;
  std::vector<bool> given_;       // the gradient's memory is of this object
  std::vector<Buffer> settings_;  // each has all settings; there is one for each server
};

/// A rank that reads the variables while other ranks train them, for example for inference. The
/// errors are those of ParameterWorker.
class ParameterReader {
 public:
  /// Returns when all servers are connected.
  ParameterReader(
      Context& job, const std::vector<NamedTensor>& variables,
      const ParameterServerOptions& options = {})
      : connection_(job, variables, options, DTRUN_READER), variables_(variables) {}

  /// Fills the buffers of the variables. Returns the number of updates on the first server.
  uint64_t Pull() {
    const uint64_t version = connection_.Pull();
    for (size_t i = 0; i < variables_.size(); ++i) {
      const Buffer& buffer = variables_[i].buffer;
      if (buffer.count > 0) std::memcpy(buffer.data, connection_.value(i).data, buffer.bytes());
    }
    return version;
  }
  /// Reads the state of the servers' optimizers, server by server, with the names of the shards.
  TensorFile ReadState() { return connection_.ReadState(); }
  /// Asks the first server for the progress of the job.
  ParameterProgress progress() { return connection_.progress(); }

 private:
  detail::ParameterConnection connection_;
  std::vector<NamedTensor> variables_;
};

}  // namespace dtrun

#endif
