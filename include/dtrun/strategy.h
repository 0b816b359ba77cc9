#ifndef DTRUN_STRATEGY_H_
#define DTRUN_STRATEGY_H_

#include <dtrun/communicator.h>
#include <dtrun/dataset.h>
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

/// What a replica knows of itself while it runs.
class ReplicaContext {
 public:
  explicit ReplicaContext(Communicator& replicas) : replicas_(replicas) {}

  int replica_id_in_sync_group() const { return replicas_.rank(); }
  int num_replicas_in_sync() const { return replicas_.size(); }
  /// The values of all replicas, element by element, on all of them: kSum or kAverage. Collective.
  template <typename T>
  Value<T> AllReduce(ReduceOp op, Value<T> value) {
    return detail::ReduceElements(replicas_, op, std::move(value));
  }

 private:
  Communicator& replicas_;
};

/// What is made through it belongs to its strategy: variables, and optimizers of what all replicas
/// train. Lives no longer than the strategy.
class StrategyScope {
 public:
  explicit StrategyScope(Strategy& strategy) : strategy_(strategy) {}

  /// Collective: all replicas make the same ones, in the same order; a difference is kMismatch. It
  /// starts from the chief's `initial`. kInvalidArgument for a name that exists already.
  template <typename T>
  Variable<T> MakeVariable(
      const std::string& name, std::vector<T> initial, VariableOptions options = {});

  /// Collective: from now on the optimizer's steps are the strategy's. `optimizer` outlives the
  /// result, and steps no more by itself. kInvalidArgument, on all replicas, for one that the
  /// strategy cannot take.
  std::unique_ptr<StrategyOptimizer> Distribute(
      Optimizer& optimizer, const StrategyOptimizerOptions& options = {});

 private:
  Strategy& strategy_;
};

/// How a training is spread over replicas, each a rank of the job: where variables live, how
/// gradients come together, what each replica computes on. A trainer that is written for one runs
/// with any other: only the line that makes it changes. Synchronous: at every step all replicas
/// have the same parameters.
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
/// What is collective is called by all replicas in the same order. Not thread-safe. The context
/// outlives it.
class Strategy {
 public:
  /// `replicas` is its own. Derive from it for a strategy of your own.
  explicit Strategy(Communicator replicas) : replicas_(std::move(replicas)) {}
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// As `MakeStrategy` knows it: "mirrored".
  virtual std::string name() const = 0;

  /// Replicas whose gradients make one step.
  int num_replicas_in_sync() const { return replicas_.size(); }
  /// Worker 0 is the chief: what it has becomes everybody's, and it writes what is written once.
  bool is_chief() const { return replicas_.rank() == 0; }
  /// Of the replicas, for what the strategy has no call of its own.
  Communicator& replicas() { return replicas_; }

  StrategyScope Scope() { return StrategyScope(*this); }

  /// Calls `function` with `arguments`, and with a ReplicaContext& in front of them if it takes
  /// one, as this rank's replica, and returns what it returned: this replica's part of what the
  /// replicas have together. Local.
  template <typename Function, typename... Arguments>
  auto Run(Function&& function, Arguments&&... arguments) {
    if constexpr (std::is_invocable_v<Function, ReplicaContext&, Arguments...>) {
      ReplicaContext context(replicas_);
      return std::forward<Function>(function)(context, std::forward<Arguments>(arguments)...);
    } else {
      return std::forward<Function>(function)(std::forward<Arguments>(arguments)...);
    }
  }

  /// The values of all replicas as one, the same bits on all: kSum or kAverage. Collective. Without
  /// `axis`, element by element over the replicas. With one, first over that dimension of each
  /// replica's value, which may differ in extent, and then over the replicas; the mean divides by
  /// the true number of examples.
  ///
  ///   replica 0: (4) {1, 1, 1, 1}   replica 1: (2) {4, 4}   mean over axis 0  ->  12 / 6 = 2
  ///
  /// Floats are summed over an axis in f64. Errors, on all replicas: kMismatch (shapes, op, axis or
  /// dtype differ), kInvalidArgument (another op, an axis that does not exist, a mean of nothing).
  template <typename T>
  Value<T> Reduce(ReduceOp op, Value<T> value, std::optional<int> axis = std::nullopt) {
    if (!axis) return detail::ReduceElements(replicas_, op, std::move(value));
    return detail::ReduceOverAxis(replicas_, op, value, *axis);
  }

  /// The values of all replicas one behind the other along `axis`, in which their extents may
  /// differ, in rank order. Collective; errors as of Reduce.
  ///
  ///   replica 0: (2, 1) {1, 2}   replica 1: (1, 1) {3}   axis 0  ->  (3, 1) {1, 2, 3}
  template <typename T>
  Value<T> Gather(const Value<T>& value, int axis) {
    return detail::GatherAlong(replicas_, value, axis);
  }

  /// The values of the replicas of this process, of which a rank has one. Local; Gather has those
  /// of all.
  template <typename T>
  std::vector<T> LocalResults(const T& value) const {
    return {value};
  }

  /// A data set that says its global batch, cut into the replicas' parts. Collective.
  std::unique_ptr<DistributedDataset> DistributeDataset(
      const Dataset& dataset, InputSplit split = InputSplit::kData) {
    return dataset.Distribute(replicas_, split);
  }

  /// Every replica's own data set, with its own batches. Collective; what `function` throws on one
  /// replica is thrown on all, naming it.
  std::unique_ptr<DistributedDataset> DistributeDatasetFromFunction(
      const DatasetFunction& function) {
    InputContext input;
    input.num_input_pipelines = input.num_replicas_in_sync = replicas_.size();
    input.input_pipeline_id = replicas_.rank();
    std::unique_ptr<Dataset> dataset;
    detail::ThrowTogether(replicas_, "replica", [&] {
      dataset = function(input);
      if (dataset == nullptr)
        throw Error(ErrorCode::kInvalidArgument, "the data set function has returned none");
    });
    return dataset->DistributePerReplica(replicas_);
  }

  /// What a strategy is made of; called by its scope. Collective.
  virtual std::unique_ptr<StrategyOptimizer> Wrap(
      Optimizer& optimizer, const StrategyOptimizerOptions& options) = 0;
  /// A place for a variable that all replicas have alike.
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
    throw Error(ErrorCode::kInvalidArgument, "there is a variable '" + name + "' already");
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
