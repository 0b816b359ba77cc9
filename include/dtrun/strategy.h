#ifndef DTRUN_STRATEGY_H_
#define DTRUN_STRATEGY_H_

#include <dtrun/checkpoint.h>
#include <dtrun/communicator.h>
#include <dtrun/dataset.h>
#include <dtrun/detail/device.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/detail/replica_values.h>
#include <dtrun/detail/strategy_optimizer.h>
#include <dtrun/detail/together.h>
#include <dtrun/detail/variable.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtrun {

class Strategy;

/// How gradients in GPU memory are summed over the replicas.
enum class CrossDeviceOps {
  kAuto,                 ///< the first of these that works
  kNccl,                 ///< NVIDIA's NCCL
  kHierarchicalCopy,     ///< copies between the GPUs of each host, then between the hosts
  kReductionToOneDevice  ///< in the hosts' memory
};

/// The context of a replica while it runs.
class ReplicaContext {
 public:
  /// The context of this rank's replica. `replicas` outlives it.
  explicit ReplicaContext(Communicator& replicas) : replicas_(replicas) {}

  /// The number of this replica, from 0.
  int replica_id_in_sync_group() const { return replicas_.rank(); }
  /// The number of replicas in a step.
  int num_replicas_in_sync() const { return replicas_.size(); }
  /// Reduces the values of all replicas, element by element: kSum or kAverage. All replicas get the
  /// result. Collective.
  template <typename T>
  Value<T> AllReduce(ReduceOp op, Value<T> value) {
    return detail::ReduceElements(replicas_, op, std::move(value));
  }

 private:
  Communicator& replicas_;
};

/// Makes variables and distributed optimizers of a strategy. The strategy outlives them and this
/// scope.
class StrategyScope {
 public:
  /// A scope of `strategy`, as Strategy::Scope returns it.
  explicit StrategyScope(Strategy& strategy) : strategy_(strategy) {}

  /// Makes a variable. Collective: all replicas make the same variables in the same order,
  /// otherwise kMismatch. The initial values are the chief's `initial`. kInvalidArgument: the name
  /// exists already.
  template <typename T>
  Variable<T> MakeVariable(
      const std::string& name, std::vector<T> initial, VariableOptions options = {});

  /// Makes a distributed optimizer, which steps with the gradients of all replicas. Collective.
  /// `optimizer` outlives the result, and no longer steps by itself. kInvalidArgument, on all
  /// replicas: the strategy does not support this optimizer.
  std::unique_ptr<StrategyOptimizer> Distribute(
      Optimizer& optimizer, const StrategyOptimizerOptions& options = {});

 private:
  Strategy& strategy_;
};

/// A way to distribute training over replicas: the place of variables, the reduction of gradients,
/// the device of each replica. Each replica is a rank of the job. A trainer that is written for one
/// strategy runs with any other: only the line that makes the strategy changes. At every step all
/// replicas have the same parameters. Only ParameterServerStrategy differs: see there.
///
///   dtrun::Context job = dtrun::Init();
///   dtrun::MirroredStrategy strategy(job);                          // the line
///   auto optimizer = strategy.Scope().Distribute(sgd);
///   auto data = strategy.DistributeDataset(dataset);
///   for (DistributedBatch batch; data->Next(batch);) {
///     Value<float> losses = strategy.Run(Gradients, batch);         // of this replica's examples
///     optimizer->Step();
///     mean = strategy.Reduce(ReduceOp::kAverage, losses, 0).number();
///   }
///
/// All replicas call the collective functions in the same order. Not thread-safe. The context
/// outlives the strategy.
class Strategy {
 public:
  /// Takes ownership of `replicas`. To make your own strategy, derive from this class.
  explicit Strategy(Communicator replicas) : replicas_(std::move(replicas)) {}
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// The name that `MakeStrategy` uses, for example "mirrored".
  virtual std::string name() const = 0;

  /// The device on which this rank's replica computes.
  virtual Device device() const { return Device(); }
  /// True if the replicas' parameters are in host memory, also if the replicas compute on GPUs.
  virtual bool parameters_in_host_memory() const { return false; }

  /// The number of replicas in a step.
  int num_replicas_in_sync() const { return replicas_.size(); }
  /// Whether this is worker 0, the chief. All replicas start with the chief's values. Only the
  /// chief writes files that are written once.
  virtual bool is_chief() const { return replicas_.rank() == 0; }
  /// Whether this rank is a parameter server. It has served when Scope().Distribute returns, and
  /// has nothing else to do: `if (strategy.is_server()) return;`
  virtual bool is_server() const { return false; }
  /// The communicator of the replicas, for operations that the strategy does not have.
  Communicator& replicas() { return replicas_; }

  /// Returns a scope, which makes variables and distributed optimizers of this strategy.
  StrategyScope Scope() { return StrategyScope(*this); }

  /// Calls `function` with `arguments`, as this rank's replica, and returns its result. If
  /// `function` takes a ReplicaContext& before them, it gets one. Local.
  template <typename Function, typename... Arguments>
  auto Run(Function&& function, Arguments&&... arguments) {
    if constexpr (std::is_invocable_v<Function, ReplicaContext&, Arguments...>) {
      ReplicaContext context(replicas_);
      return std::forward<Function>(function)(context, std::forward<Arguments>(arguments)...);
    } else {
      return std::forward<Function>(function)(std::forward<Arguments>(arguments)...);
    }
  }

  /// Reduces the values of all replicas to one value, with the same bits on all replicas: kSum or
  /// kAverage. Collective. Without `axis`, it reduces element by element over the replicas. With an
  /// `axis`, it first reduces over that dimension of each replica's value, then over the replicas.
  /// The extents of that dimension may differ. The mean divides by the actual number of examples.
  ///
  ///   replica 0: (4) {1, 1, 1, 1}   replica 1: (2) {4, 4}   mean over axis 0  ->  12 / 6 = 2
  ///
  /// Floats are summed over an axis in f64. Errors, on all replicas: kMismatch (shapes, op, axis or
  /// dtype differ), kInvalidArgument (another op, an axis that does not exist, a mean of no
  /// elements).
  template <typename T>
  Value<T> Reduce(ReduceOp op, Value<T> value, std::optional<int> axis = std::nullopt) {
    if (!axis) return detail::ReduceElements(replicas_, op, std::move(value));
    return detail::ReduceOverAxis(replicas_, op, value, *axis);
  }

  /// Concatenates the values of all replicas along `axis`, in rank order. The extents of that
  /// dimension may differ. Collective; errors as in Reduce.
  ///
  ///   replica 0: (2, 1) {1, 2}   replica 1: (1, 1) {3}   axis 0  ->  (3, 1) {1, 2, 3}
  template <typename T>
  Value<T> Gather(const Value<T>& value, int axis) {
    return detail::GatherAlong(replicas_, value, axis);
  }

  /// Returns the values of the replicas of this process: one, because a rank has one replica.
  /// Local. Gather returns the values of all replicas.
  template <typename T>
  std::vector<T> LocalResults(const T& value) const {
    return {value};
  }

  /// Splits a data set with global batches into the replicas' parts, for training. Collective.
  std::unique_ptr<DistributedDataset> DistributeDataset(
      const Dataset& dataset, InputSplit split = InputSplit::kData) {
    return Adapt(dataset.Distribute(replicas_, split), InputUse::kTraining);
  }
  /// The same for evaluation: no step follows the batches. Collective.
  std::unique_ptr<DistributedDataset> DistributeEvaluationDataset(
      const Dataset& dataset, InputSplit split = InputSplit::kData) {
    return Adapt(dataset.Distribute(replicas_, split), InputUse::kEvaluation);
  }

  /// Makes each replica's own data set for training, with its own batches. Collective. If
  /// `function` throws on one replica, all replicas throw that error with the replica's number.
  std::unique_ptr<DistributedDataset> DistributeDatasetFromFunction(
      const DatasetFunction& function) {
    InputContext input;
    input.num_input_pipelines = input.num_replicas_in_sync = replicas_.size();
    input.input_pipeline_id = replicas_.rank();
    std::unique_ptr<Dataset> dataset;
    detail::ThrowTogether(replicas_, "replica", [&] {
      dataset = function(input);
      if (dataset == nullptr)
        throw Error(
            ErrorCode::kInvalidArgument,
            "the data set function returned null; expected a data set");
    });
    return Adapt(dataset->DistributePerReplica(replicas_), InputUse::kTraining);
  }

  /// The checkpoints of the replicas in one folder. Collective. If the replicas do not save
  /// together, only the chief's manager saves and loads. Those of other ranks do nothing.
  CheckpointManager Checkpoints(const std::string& folder, CheckpointOptions options = {}) {
    options.discard = options.discard || (replicas_.rank() == 0 && !is_chief());
    return CheckpointManager(replicas_, folder, options);
  }

  /// Chooses how gradients in GPU memory are summed, instead of the job's `--device-backend`. No
  /// effect on host memory. Collective, before Scope().Distribute. kMismatch: the replicas choose
  /// differently. If the way cannot serve the replicas, Distribute or the first step throws
  /// kUnavailable, with the reason.
  void UseCrossDeviceOps(CrossDeviceOps ops) {
    const char* const backends[] = {"auto", "nccl", "cuda_ipc,hierarchical", "host_staged"};
    const char* const names = backends[static_cast<size_t>(ops)];
    detail::CheckSameText(replicas_, "ways to sum gradients on GPUs", names);
    detail::Check(dtrun_communicator_use_device_backends(replicas_.handle(), names));
  }

  /// Wraps an optimizer. StrategyScope calls it. Collective.
  virtual std::unique_ptr<StrategyOptimizer> Wrap(
      Optimizer& optimizer, const StrategyOptimizerOptions& options) = 0;
  /// Changes a distributed data set as the strategy needs it.
  virtual std::unique_ptr<DistributedDataset> Adapt(
      std::unique_ptr<DistributedDataset> data, InputUse use) {
    static_cast<void>(use);
    return data;
  }
  /// Makes the place of a variable that is the same on all replicas.
  virtual std::unique_ptr<VariablePlace> PlaceMirrored(uint64_t bytes) {
    return std::make_unique<OwnPlace>(bytes);
  }

 private:
  friend class StrategyScope;

  Communicator replicas_;
  std::set<std::string> variables_;
};

template <typename T>
Variable<T> StrategyScope::MakeVariable(
    const std::string& name, std::vector<T> initial, VariableOptions options) {
  Communicator& replicas = strategy_.replicas();
  detail::CheckSameText(
      replicas, "variables",
      "'" + name + "' " + NameOf(detail::DTypeOf<T>()) + "[" + std::to_string(initial.size()) +
          "] synchronised on " +
          (options.synchronization == VariableSynchronization::kOnRead ? "read" : "write") +
          ", aggregation " + NameOf(options.aggregation));
  if (!strategy_.variables_.insert(name).second)
    throw Error(
        ErrorCode::kInvalidArgument, "variable '" + name + "' exists already; expected a new name");
  const uint64_t bytes = initial.size() * sizeof(T);
  const bool on_read = options.synchronization == VariableSynchronization::kOnRead;
  Variable<T> variable(
      replicas, name, initial.size(), options,
      on_read ? std::make_unique<OwnPlace>(bytes) : strategy_.PlaceMirrored(bytes));
  replicas.Broadcast(Buffer(initial.data(), initial.size()), 0);
  variable.Set(std::move(initial));
  return variable;
}

inline std::unique_ptr<StrategyOptimizer> StrategyScope::Distribute(
    Optimizer& optimizer, const StrategyOptimizerOptions& options) {
  return strategy_.Wrap(optimizer, options);
}

}  // namespace dtrun

#endif
