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

/// What a server's variables and optimizer are saved to, by the first server, while workers go on.
struct ParameterCheckpoints {
  std::string folder = {};   ///< "": nothing is saved
  uint64_t every_steps = 0;  ///< 0: at the end alone
  uint64_t max_to_keep = 3;
  bool resume = true;  ///< begin with the newest one that is valid, if there is any
};

/// Where a server's time went, and what happened.
struct ParameterStatistics {
  uint64_t updates = 0, pulls = 0;
  uint64_t repeated_steps = 0;  ///< handed out again, since their worker was lost
  uint64_t lost_workers = 0;
  double update_s = 0, copy_s = 0;  ///< seconds in the optimizer, and in copies of values
  double cpu_s = 0;                 ///< CPU time of the server's thread
};

/// One of the ranks that hold the variables; the first one hands out the steps, too.
///
///   dtrun::ParameterServer server(job, variables, make_optimizer, options, {.folder = "ckpt"});
///   server.Serve();
///
/// Variables are dealt to the servers round-robin; a large one is cut along its first axis
/// (ParameterServerOptions). Each server updates its own by an optimizer of its own, in a thread
/// that does nothing else than answer the workers: gradients are applied one after the other, so
/// that the optimizer need not be thread-safe. A worker of the same host maps the memory that
/// gradients and values pass through; one of another host sends them.
///
/// Errors of Serve: kPeerLost (another server, or the last worker; the text says how to go on),
/// kMismatch (servers have other variables), what the optimizer throws, those of
/// CheckpointManager. Whoever is connected then sees that this server is lost. Not thread-safe.
class ParameterServer {
 public:
  /// Makes the optimizer of this server's shards, (rows, ...) each. A shard is named as its
  /// variable, or "part_<i>_of_<n>/<variable>". The vector stays where it is.
  using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(
      std::vector<Parameter>& shards, const std::vector<std::vector<uint64_t>>& shapes)>;

  /// `variables` are the same on all ranks of the job but for their values, which are this server's
  /// first ones, unless there is a checkpoint: its values then come into them. kInvalidArgument:
  /// this rank is no server (RoleOf), a variable or an option is wrong, or a variable is cut whose
  /// optimizer needs it whole (Muon; norms, as LARS and LAMB take them): set `min_partition_bytes`
  /// to UINT64_MAX for these.
  ParameterServer(
      Context& job, const std::vector<NamedTensor>& variables, const MakeOptimizer& make,
      const ParameterServerOptions& options, const ParameterCheckpoints& checkpoints = {})
      : job_(job), variables_(variables), options_(options), checkpoints_(checkpoints) {
    RoleOf(job, options);  // complains
    std::string loaded;
    if (!checkpoints.folder.empty() && checkpoints.resume) loaded = LoadValues();
    Create();
    optimizer_ = make(shards_, shapes_);
    CheckWhole();
    if (!loaded.empty()) LoadState(loaded);
  }
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  /// The step that the job begins with: not 0 after a checkpoint.
  uint64_t first_step() const { return options_.first_step; }
  Optimizer& optimizer() { return *optimizer_; }
  /// Called before each update, on the server's thread, with the number of updates so far: to set a
  /// learning rate, for example.
  void set_before_update(std::function<void(uint64_t update)> function) {
    before_update_ = std::move(function);
  }

  /// Returns when all steps are done, the last checkpoint is on the disk, and no worker and no
  /// reader is connected any more. On the first server the variables then have their last values.
  /// That a checkpoint could not be written is thrown then, not before.
  void Serve() {
    Start();
    try {
      if (job_.rank() == 0)
        Coordinate();
      else
        WaitFor(UINT64_MAX);
      detail::Check(dtrun_parameter_server_finish(handle_.get()));
    } catch (...) {
      handle_.reset();  // nobody waits for this server any more
      if (failure_ != nullptr) std::rethrow_exception(failure_);
      throw;
    }
    if (not_saved_ != nullptr) std::rethrow_exception(not_saved_);
  }

  /// Any thread, also while it serves.
  ParameterStatistics statistics() const {
    dtrun_parameter_server_statistics told = dtrun_new_parameter_server_statistics();
    detail::Check(dtrun_parameter_server_read_statistics(handle_.get(), &told));
    return {told.updates,  told.pulls,  told.repeated_steps, told.lost_workers,
            told.update_s, told.copy_s, told.cpu_s};
  }
  /// By staleness (updates between the values that a gradient was computed from and those that it
  /// was applied to): how many gradients had it, on this server. Any thread.
  std::vector<uint64_t> staleness() const {
    size_t needed = 0;
    detail::Check(dtrun_parameter_server_staleness(handle_.get(), nullptr, 0, &needed));
    std::vector<uint64_t> counts(needed);
    detail::Check(dtrun_parameter_server_staleness(handle_.get(), counts.data(), needed, nullptr));
    return counts;
  }
  /// The same for people, in lines: "staleness 1: 1201 gradients, 64.0 %".
  std::string StalenessHistogram() const {
    constexpr size_t kMost = 16;  // what is staler has one line
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

  // All servers take the same one: nothing is saved before they have come. "": there is none.
  std::string LoadValues() {
    LoadOptions options;
    options.allow_unexpected = true;  // the optimizer's
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

  // An update that looks at a variable as a whole would look at a part of it.
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

  // On the server's thread.
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

  // Reads the variables as any rank does, and saves them while the workers go on.
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

  // A disk that is full costs a checkpoint, not the training.
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
      handle_;  // its thread uses all of the above
};

}  // namespace dtrun

#endif
