#ifndef DTRUN_PARAMETER_SERVER_STRATEGY_H_
#define DTRUN_PARAMETER_SERVER_STRATEGY_H_

#include <dtrun/context.h>
#include <dtrun/dataset.h>
#include <dtrun/detail/device.h>
#include <dtrun/detail/loss_scale_optimizer.h>
#include <dtrun/detail/parameter_state.h>
#include <dtrun/detail/shard_update.h>
#include <dtrun/detail/shared_steps.h>
#include <dtrun/detail/strategy_optimizer.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/parameter_server.h>
#include <dtrun/strategy.h>
#include <dtrun/tensors.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// The variables of a training with parameter servers: the parameters of the optimizer, and its
/// step_settings() once for each server. The values of the parameters stay at their place.
class ServedVariables {
 public:
  /// `optimizer` outlives this object.
  ServedVariables(Optimizer& optimizer, int servers)
      : whole_(detail::NeedsWholeVariables(optimizer)), settings_(optimizer.step_settings()) {
    for (const Parameter& parameter : optimizer.parameters()) {
      const Buffer& value = parameter.value;
      // Whole rows of a parameter with rows, and any elements of another parameter.
      std::vector<uint64_t> shape = {value.count};
      if (parameter.row_length > 0)
        shape = {value.count / parameter.row_length, parameter.row_length};
      tensors_.emplace_back(parameter.name, value, shape);
    }
    if (settings_.empty()) return;
    for (int server = 0; server < servers; ++server)  // one row: they are not cut
      tensors_.emplace_back(
          "dtrun.step_settings." + std::to_string(server),
          Buffer(settings_.data(), settings_.size()),
          std::vector<uint64_t>{1, static_cast<uint64_t>(settings_.size())});
  }
  ServedVariables(const ServedVariables&) = delete;
  ServedVariables& operator=(const ServedVariables&) = delete;

  /// The options with the partitioner for these variables: None() if the optimizer needs whole
  /// variables.
  ParameterServerOptions OptionsFor(ParameterServerOptions options) const {
    if (whole_) options.partitioner = Partitioner::None();
    return options;
  }
  /// For ParameterServer, ParameterWorker and ParameterReader, with OptionsFor.
  const std::vector<NamedTensor>& tensors() const { return tensors_; }

 private:
  bool whole_;
  std::vector<double> settings_;
  std::vector<NamedTensor> tensors_;
};

/// The options of a ParameterServerStrategy. The same on all ranks.
struct ParameterStrategyOptions {
  /// Bound of staleness, partitioner, evaluator. An optimizer that needs whole variables gets them
  /// whole: the partitioner is then None().
  ParameterServerOptions servers = {};
  ParameterCheckpoints checkpoints = {};  ///< that the servers save, and start from
  /// The devices of the workers of a host: one for all of them, or one for each, in the order of
  /// their ranks; "gpu:*" gives worker i of a host GPU i. Empty: the CPU. Servers use the CPU, and
  /// the workers' parameters are in host memory.
  std::vector<std::string> devices = {};
};

namespace detail {

/// A worker's optimizer: the servers make the steps.
class PushingOptimizer : public StrategyOptimizer {
 public:
  PushingOptimizer(Optimizer& optimizer, std::shared_ptr<SharedSteps> steps)
      : optimizer_(optimizer), steps_(std::move(steps)) {}
  // The worker uses the parameters, which may not outlive the strategy and the data sets.
  ~PushingOptimizer() override { steps_->worker.reset(); }
  PushingOptimizer(const PushingOptimizer&) = delete;
  PushingOptimizer& operator=(const PushingOptimizer&) = delete;

  void MarkReady(size_t) override {}
  void Step() override {
    steps_->worker->SetSettings(optimizer_.step_settings());
    steps_->worker->Push();
    ++steps_->next_step;
    ++steps_->steps_made;
  }
  /// The state of the servers' optimizers.
  std::vector<NamedBuffer> BorrowState() override {
    constexpr size_t kPrefix = sizeof("optimizer/") - 1;
    state_.emplace(steps_->worker->ReadState());
    std::vector<NamedBuffer> state;
    for (const NamedTensor& tensor : state_->tensors())
      state.push_back({tensor.name.substr(kPrefix), tensor.buffer});
    return state;
  }
  void ReturnState() override { RefuseToWrite(); }
  std::vector<NamedBuffer> BorrowValues() override {
    steps_->Pull();
    std::vector<NamedBuffer> values;
    for (const Parameter& parameter : optimizer_.parameters())
      values.push_back({parameter.name, parameter.value});
    return values;
  }
  void ReturnValues() override { RefuseToWrite(); }
  uint64_t values_version() const override { return steps_->pulls; }
  std::optional<uint64_t> assigned_step() const override { return steps_->next_step; }
  ReducerStatistics statistics() const override { return {}; }

 private:
  [[noreturn]] static void RefuseToWrite() {
    throw Error(
        ErrorCode::kUnavailable,
        "strategy parameter_server: a worker cannot write variables, which are on the servers; the "
        "servers load their own checkpoints (ParameterCheckpoints)");
  }

  Optimizer& optimizer_;
  std::shared_ptr<SharedSteps> steps_;
  std::optional<GatheredState> state_;
};

/// The optimizer of a server that has served: there is nothing to do.
class ServedOptimizer : public StrategyOptimizer {
 public:
  explicit ServedOptimizer(Optimizer& optimizer) : optimizer_(optimizer) {}

  void MarkReady(size_t) override {}
  void Step() override {}
  std::vector<NamedBuffer> BorrowState() override { return {}; }
  void ReturnState() override {}
  std::vector<NamedBuffer> BorrowValues() override {
    std::vector<NamedBuffer> values;
    for (const Parameter& parameter : optimizer_.parameters())
      values.push_back({parameter.name, parameter.value});
    return values;
  }
  void ReturnValues() override {}
  ReducerStatistics statistics() const override { return {}; }

 private:
  Optimizer& optimizer_;
};

}  // namespace detail

/// Servers hold the variables and make the steps (`dtrun --ps N`). The other ranks are workers,
/// which train asynchronously: each is a replica alone, `num_replicas_in_sync()` is 1.
///
///   dtrun::ParameterServerStrategy strategy(job);
///   auto optimizer = strategy.Scope().Distribute(sgd);  // a server serves here
///   if (strategy.is_server()) return;
///   auto data = strategy.DistributeDataset(dataset);
///   for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
///     data->StartEpoch(epoch);
///     for (DistributedBatch batch; data->Next(batch);) {  // pulls the values
///       ...                                               // the gradients of the batch
///       optimizer->Step();                                // pushes the gradients
///     }
///   }
///
/// The workers share the batches of each epoch. If a worker is lost, its batch goes to another
/// worker. An epoch ends for a worker when all its batches are done. The training ends when all
/// workers have destroyed the optimizer.
///
/// Every worker sees all batches of DistributeEvaluationDataset, and has the same results. Reduce,
/// Gather and variables of MakeVariable are of one worker alone: the mean loss of an epoch covers
/// the batches of this worker. The chief is the first worker. The optimizer's step_settings(), for
/// example the learning rate, travel with each gradient, so a worker changes them as usual.
class ParameterServerStrategy : public Strategy {
 public:
  /// kInvalidArgument: the job has no parameter servers, this rank is the evaluator, or a device
  /// name is wrong. kUnavailable: this host does not have the device.
  explicit ParameterServerStrategy(Context& job, const ParameterStrategyOptions& options = {})
      : Strategy(job.world().Duplicate()),
        job_(job),
        options_(options),
        role_(RoleOf(job, options.servers)) {
    if (role_ == ParameterRole::kEvaluator)
      Refuse("the last rank is the evaluator, which has no replica; expected a server or a worker");
    if (!is_server()) device_ = DeviceOfWorker();
  }

  std::string name() const override { return "parameter_server"; }
  Device device() const override { return device_; }
  bool is_chief() const override { return job_.rank() == job_.parameter_servers(); }
  bool is_server() const override { return role_ == ParameterRole::kServer; }
  bool parameters_in_host_memory() const override { return true; }
  /// The server of this rank, after it has served. Null on a worker.
  const ParameterServer* server() const { return server_.get(); }

  /// On a worker, connects to all servers. On a server, serves until the training has ended. On the
  /// first server, the parameters then have their final values.
  ///
  /// kInvalidArgument: the options have an op other than kSum and kAverage, or clip; the gradients
  /// are scaled; or the strategy has an optimizer. Errors as in ParameterServer and
  /// ParameterWorker.
  std::unique_ptr<StrategyOptimizer> Wrap(
      Optimizer& optimizer, const StrategyOptimizerOptions& options) override {
    CheckOptimizer(optimizer, options);
    variables_ = std::make_unique<ServedVariables>(optimizer, job_.parameter_servers());
    const ParameterServerOptions servers = variables_->OptionsFor(options_.servers);
    if (is_server()) {
      auto server = std::make_unique<ParameterServer>(
          job_, variables_->tensors(), optimizer, servers, options_.checkpoints);
      server->Serve();
      server_ = std::move(server);
      return std::make_unique<detail::ServedOptimizer>(optimizer);
    }
    steps_->worker.emplace(job_, variables_->tensors(), optimizer.parameters(), servers);
    steps_->next_step = steps_->worker->progress().steps_done;
    steps_->Pull();
    return std::make_unique<detail::PushingOptimizer>(optimizer, steps_);
  }

  std::unique_ptr<DistributedDataset> Adapt(
      std::unique_ptr<DistributedDataset> data, InputUse use) override {
    if (is_server()) return data;
    if (use == InputUse::kTraining)
      return std::make_unique<detail::SharedBatches>(std::move(data), steps_);
    return std::make_unique<detail::EvaluationBatches>(std::move(data), steps_);
  }

 private:
  [[noreturn]] static void Refuse(const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, "strategy parameter_server: " + text);
  }

  void CheckOptimizer(Optimizer& optimizer, const StrategyOptimizerOptions& options) const {
    if (variables_ != nullptr) Refuse("found a second optimizer; expected one");
    if (options.op != ReduceOp::kSum && options.op != ReduceOp::kAverage)
      Refuse("gradients are not combined; expected op kSum or kAverage");
    if (options.max_gradient_norm > 0)
      Refuse("gradients are not clipped; expected no max_gradient_norm");
    if (dynamic_cast<LossScaleOptimizer*>(&optimizer) != nullptr)
      Refuse("the servers do not know the loss scale of a gradient; expected no loss scale");
  }

  // The servers are the first ranks, and the ranks of a host are consecutive.
  Device DeviceOfWorker() const {
    const std::vector<std::string>& devices = options_.devices;
    if (devices.empty()) return Device();
    const int first = job_.rank() - job_.local_rank();
    const int first_worker = std::max(first, job_.parameter_servers());
    const auto index = static_cast<size_t>(job_.rank() - first_worker);
    if (devices.size() > 1 && index >= devices.size())
      Refuse(
          "found " + std::to_string(devices.size()) + " devices, and worker " +
          std::to_string(index) +
          " of this host; expected one device for all workers of a host, "
          "or one for each");
    const Device device = IsAnyGpu(devices[0])
                              ? Device{DeviceKind::kCuda, static_cast<int>(index)}
                              : ParseDevice(devices[devices.size() == 1 ? 0 : index]);
    CheckDevice(device);
    return device;
  }

  Context& job_;
  ParameterStrategyOptions options_;
  ParameterRole role_;
  Device device_;
  std::unique_ptr<ServedVariables> variables_;
  std::unique_ptr<ParameterServer> server_;
  std::shared_ptr<detail::SharedSteps> steps_ = std::make_shared<detail::SharedSteps>();
};

}  // namespace dtrun

#endif
