#ifndef DTRUN_PARAMETER_SERVER_H_
#define DTRUN_PARAMETER_SERVER_H_

#include <dtrun/c.h>
#include <dtrun/checkpoint.h>
#include <dtrun/context.h>
#include <dtrun/detail/parameter_client.h>
#include <dtrun/detail/parameter_state.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/sliceable_optimizer.h>
#include <dtrun/tensors.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// The checkpoints of a parameter-server job. The first server saves the variables and the
/// optimizers' state while the workers continue.
struct ParameterCheckpoints {
  std::string folder = {};   ///< "": no checkpoints
  uint64_t every_steps = 0;  ///< 0: only at the end
  uint64_t max_to_keep = 3;  ///< keeps this many of the newest checkpoints; 0: all
  bool resume = true;        ///< start from the newest valid checkpoint, if there is one
};

/// The counters and times of a server.
struct ParameterStatistics {
  uint64_t updates = 0,         ///< gradients applied
      pulls = 0;                ///< times that values were sent
  uint64_t repeated_steps = 0;  ///< handed out again because their worker was lost
  uint64_t lost_workers = 0;    ///< workers lost before the end, counted on the first server
  double update_s = 0,          ///< seconds in the optimizer
      copy_s = 0;               ///< seconds in copies of values
  double cpu_s = 0;             ///< CPU time of the server's thread
};

/// A rank that holds variables. The first server also hands out the steps.
///
///   dtrun::ParameterServer server(job, variables, make_optimizer, options, {.folder = "ckpt"});
///   server.Serve();
///
/// Variables are dealt to the servers round-robin. A large variable is cut along its first axis
/// (ParameterServerOptions). Each server has its own optimizer and updates its own shards, in a
/// thread that only answers the workers. It applies one gradient after the other, so the optimizer
/// need not be thread-safe. Workers on the same host map the memory of gradients and values.
/// Workers on other hosts send and receive them.
///
/// Errors of Serve: kPeerLost (another server, or the last worker; the text says how to continue),
/// kMismatch (servers have other variables), errors of the optimizer and of CheckpointManager.
/// After an error, connected ranks see this server as lost. Not thread-safe.
class ParameterServer {
 public:
  /// Makes the optimizer of this server's shards. The shape of a shard is (rows, ...). A shard has
  /// the name of its variable, or "part_<i>_of_<n>/<variable>". The vector keeps its address.
  using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(
      std::vector<Parameter>& shards, const std::vector<std::vector<uint64_t>>& shapes)>;

  /// `variables` are the same on all ranks of the job, except for their values. The values on this
  /// server are the initial values of its shards. If there is a checkpoint, its values are loaded
  /// into `variables` first.
  ///
  /// kInvalidArgument: this rank is not a server (RoleOf), a variable or an option is wrong, or the
  /// optimizer needs whole variables and a variable is cut. Muon, LARS and LAMB need whole
  /// variables: set `min_partition_bytes` to UINT64_MAX for these.
  ParameterServer(
      Context& job, const std::vector<NamedTensor>& variables, const MakeOptimizer& make,
      const ParameterServerOptions& options, const ParameterCheckpoints& checkpoints = {})
      : job_(job), variables_(variables), options_(options), checkpoints_(checkpoints) {
    RoleOf(job, options);  // throws if this rank has no role
    std::string loaded;
    if (!checkpoints.folder.empty() && checkpoints.resume) loaded = LoadValues();
    Create();
    optimizer_ = make(shards_, shapes_);
    CheckWhole();
    if (!loaded.empty()) LoadState(loaded);
  }
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  /// The first step of this run. Not 0 after a checkpoint.
  uint64_t first_step() const { return options_.first_step; }
  /// The optimizer of this server's shards. It belongs to this object.
  Optimizer& optimizer() { return *optimizer_; }
  /// Sets a function that runs before each update, on the server's thread, with the number of
  /// updates so far. For example, it sets a learning rate.
  void set_before_update(std::function<void(uint64_t update)> function) {
    before_update_ = std::move(function);
  }

  /// Serves until all steps are done, the last checkpoint is on the disk, and no worker and no
  /// reader is connected. On the first server, `variables` then have their final values. If a
  /// checkpoint could not be written, Serve throws that error at the end.
  void Serve() {
    Start();
    try {
      if (job_.rank() == 0)
        Coordinate();
      else
        WaitFor(UINT64_MAX);
      detail::Check(dtrun_parameter_server_finish(handle_.get()));
    } catch (...) {
      handle_.reset();  // no rank waits for this server any more
      if (failure_ != nullptr) std::rethrow_exception(failure_);
      throw;
    }
    if (not_saved_ != nullptr) std::rethrow_exception(not_saved_);
  }

  /// Any thread, also during Serve().
  ParameterStatistics statistics() const {
    dtrun_parameter_server_statistics told = dtrun_new_parameter_server_statistics();
    detail::Check(dtrun_parameter_server_read_statistics(handle_.get(), &told));
    return {told.updates,  told.pulls,  told.repeated_steps, told.lost_workers,
            told.update_s, told.copy_s, told.cpu_s};
  }
  /// Counts the gradients on this server by staleness. The staleness is the number of updates
  /// between the values that a gradient was computed from and the values that it was applied to.
  /// Any thread.
  std::vector<uint64_t> staleness() const {
    size_t needed = 0;
    detail::Check(dtrun_parameter_server_staleness(handle_.get(), nullptr, 0, &needed));
    std::vector<uint64_t> counts(needed);
    detail::Check(dtrun_parameter_server_staleness(handle_.get(), counts.data(), needed, nullptr));
    return counts;
  }
  /// The same as text, in lines: "staleness 1: 1201 gradients, 64.0 %".
  std::string StalenessHistogram() const {
    constexpr size_t kMost = 16;  // staler gradients share one line
    std::vector<uint64_t> counts = staleness();
    uint64_t all = 0;
    for (const uint64_t count : counts) all += count;
    for (; counts.size() > kMost + 1; counts.pop_back()) counts[kMost] += counts.back();
    std::string lines;
    for (size_t s = 0; s < counts.size(); ++s) {
      if (counts[s] == 0) continue;
      char line[96];
      std::snprintf(
          line, sizeof line, "staleness %zu%s: %llu %s, %.1f %%\n", s, s == kMost ? " or more" : "",
          static_cast<unsigned long long>(counts[s]), counts[s] == 1 ? "gradient" : "gradients",
          100.0 * static_cast<double>(counts[s]) / static_cast<double>(all));
      lines += line;
    }
    return lines;
  }

 private:
  CheckpointManager Reading() const {
    CheckpointOptions options;
    options.read_only = true;
    return CheckpointManager(job_.world(), checkpoints_.folder, options);
  }

  // Returns the name of the checkpoint; "" if there is none. All servers load the same checkpoint,
  // because no server saves before all servers are connected.
  std::string LoadValues() {
    LoadOptions options;
    options.allow_unexpected = true;  // tensors of the optimizer
    const Loaded loaded = Reading().Load(variables_, options);
    if (!loaded.checkpoint) return "";
    options_.first_step = std::min(loaded.checkpoint->step, options_.steps);
    return loaded.checkpoint->name;
  }

  void Create() {
    const std::vector<dtrun_tensor> list = detail::ToC(variables_);
    dtrun_parameter_server_options told = dtrun_default_parameter_server_options();
    told.first_step = options_.first_step;
    told.steps = options_.steps;
    told.max_staleness = options_.max_staleness.value_or(UINT64_MAX);
    told.min_partition_bytes = options_.min_partition_bytes;
    told.workers = WorkersOf(job_, options_);
    told.readers = options_.evaluator ? 1 : 0;
    dtrun_parameter_server* server = nullptr;
    detail::Check(
        dtrun_parameter_server_create(job_.handle(), list.data(), list.size(), &told, &server));
    handle_.reset(server);
    const size_t count = dtrun_parameter_server_shard_count(server);
    for (size_t i = 0; i < count; ++i) AddShard(i);
  }

  void AddShard(size_t index) {
    dtrun_parameter_shard shard{};
    detail::Check(dtrun_parameter_server_shard(handle_.get(), index, &shard));
    const NamedTensor& variable = variables_[shard.variable];
    Parameter parameter;
    parameter.name = detail::ShardName(variable.name, shard.part, shard.parts);
    parameter.value = detail::FromC(shard.value);
    parameter.gradient = Buffer(nullptr, parameter.value.count, parameter.value.dtype);
    std::vector<uint64_t> shape = variable.shape;
    if (shard.parts > 1)
      shape[0] = shape[0] * parameter.value.count / std::max<uint64_t>(variable.buffer.count, 1);
    shards_.push_back(std::move(parameter));
    shapes_.push_back(std::move(shape));
    places_.push_back(
        {shards_.back().name, variable.name, shard.first, shard.value.count,
         variable.buffer.count});
  }

  // Refuses an optimizer that needs whole variables if a variable is cut.
  void CheckWhole() const {
    const auto* sliceable = dynamic_cast<const SliceableOptimizer*>(optimizer_.get());
    if (sliceable != nullptr && !sliceable->needs_norms()) return;
    for (const detail::ShardPlace& place : places_)
      if (place.count < place.whole)
        throw Error(
            ErrorCode::kInvalidArgument,
            "variable '" + place.variable +
                "' is cut between parameter servers, and the optimizer needs it whole; set "
                "min_partition_bytes to UINT64_MAX");
  }

  void LoadState(const std::string& checkpoint) {
    detail::LoadedState state(optimizer_->state(), places_);
    LoadOptions options;
    options.name = checkpoint;
    options.allow_unexpected = true;  // the values
    Reading().Load(state.tensors(), options);
    state.Take();
  }

  void Start() {
    const std::vector<NamedTensor> state = TensorsOf(optimizer_->state());
    const std::vector<dtrun_tensor> list = detail::ToC(state);
    detail::Check(dtrun_parameter_server_start(
        handle_.get(),
        [](void* self, const void* const* gradients) {
          return static_cast<ParameterServer*>(self)->Update(gradients);
        },
        this, list.data(), list.size()));
  }

  // Runs on the server's thread.
  int32_t Update(const void* const* gradients) {
    try {
      if (before_update_) before_update_(updates_);
      for (size_t i = 0; i < shards_.size(); ++i)
        optimizer_->parameters()[i].gradient.data = const_cast<void*>(gradients[i]);
      optimizer_->Step();
      ++updates_;
      return 0;
    } catch (...) {
      failure_ = std::current_exception();
      return 1;
    }
  }

  uint64_t WaitFor(uint64_t step) {
    uint64_t done = 0;
    detail::Check(dtrun_parameter_server_wait(handle_.get(), step, &done));
    return done;
  }

  // Pulls the variables as any reader does, and saves them while the workers continue.
  void Coordinate() {
    ParameterReader reader(job_, variables_, options_);
    if (checkpoints_.folder.empty()) {
      WaitFor(options_.steps);
      reader.Pull();
      return;
    }
    CheckpointOptions kept;
    kept.max_to_keep = checkpoints_.max_to_keep;
    CheckpointManager manager(job_.world(), checkpoints_.folder, kept);
    if (options_.first_step >= options_.steps) reader.Pull();
    const uint64_t every = checkpoints_.every_steps > 0 ? checkpoints_.every_steps : UINT64_MAX;
    for (uint64_t done = options_.first_step; done < options_.steps;) {
      const uint64_t left = options_.steps - done;
      done = WaitFor(done + std::min(every - done % every, left));
      SaveOptions save;
      save.step = done;
      reader.Pull();
      const detail::GatheredState state(reader.ReadState());
      std::vector<NamedTensor> tensors = variables_;
      for (const NamedTensor& tensor : state.tensors()) tensors.push_back(tensor);
      Quietly([&] { manager.StartSave(save, tensors); });
    }
    Quietly([&] { manager.Wait(); });
  }

  // If a save fails, for example on a full disk, the training continues.
  template <typename Save>
  void Quietly(const Save& save) {
    try {
      save();
    } catch (const Error&) {
      not_saved_ = std::current_exception();
    }
  }

  Context& job_;
  std::vector<NamedTensor> variables_;
  ParameterServerOptions options_;
  ParameterCheckpoints checkpoints_;
  std::vector<Parameter> shards_;
  std::vector<std::vector<uint64_t>> shapes_;
  std::vector<detail::ShardPlace> places_;
  std::function<void(uint64_t)> before_update_;
  uint64_t updates_ = 0;
  std::exception_ptr failure_, not_saved_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<
      dtrun_parameter_server,
      detail::Destroyer<dtrun_parameter_server, dtrun_parameter_server_destroy>>
      handle_;  // its thread uses all members above
};

}  // namespace dtrun

#endif
