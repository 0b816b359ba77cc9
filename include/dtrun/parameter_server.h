#ifndef DTRUN_PARAMETER_SERVER_H_
#define DTRUN_PARAMETER_SERVER_H_

#include <dtrun/c.h>
#include <dtrun/checkpoint.h>
#include <dtrun/context.h>
#include <dtrun/detail/parameter_client.h>
#include <dtrun/detail/parameter_state.h>
#include <dtrun/detail/shard_update.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/tensors.h>
#include <dtrun/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
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
  double span_s = 0;            ///< seconds from the first update to the last
};

/// A rank that holds variables. The first server also hands out the steps.
///
///   dtrun::ParameterServer server(job, variables, optimizer, options, {.folder = "ckpt"});
///   server.Serve();
///
/// Variables are dealt to the servers round-robin. A large variable is cut along its first axis
/// (ParameterServerOptions). Each server updates its own shards with its own optimizer, in a thread
/// that only answers the workers. It applies one gradient after the other, so the optimizer need
/// not be thread-safe. Workers on the same host map the memory of gradients and values.
/// Workers on other hosts send and receive them.
///
/// Errors of Serve: kPeerLost (another server, or the last worker; the text says how to continue),
/// kMismatch (servers have other variables), errors of the optimizer and of CheckpointManager.
/// After an error, connected ranks see this server as lost. Not thread-safe.
class ParameterServer {
 public:
  /// `variables` are the same on all ranks of the job, except for their values. The values on this
  /// server are the initial values of its shards. If there is a checkpoint, its values are loaded
  /// into `variables` first.
  ///
  /// `optimizer` outlives this object. Its parameters, in host memory, are the first variables, in
  /// the same order. Further variables are settings: workers push the optimizer's step_settings()
  /// as their gradients. Each server needs one of them.
  ///
  /// kInvalidArgument: this rank is not a server (RoleOf), a variable or an option is wrong, or the
  /// optimizer needs whole variables and a variable is cut. Muon, LARS and LAMB need whole
  /// variables: use Partitioner::None() for these.
  ParameterServer(
      Context& job, const std::vector<NamedTensor>& variables, Optimizer& optimizer,
      const ParameterServerOptions& options, const ParameterCheckpoints& checkpoints = {})
      : job_(job),
        variables_(variables),
        optimizer_(optimizer),
        options_(options),
        checkpoints_(checkpoints) {
    RoleOf(job, options);  // throws if this rank has no role
    CheckOptimizer();
    std::string loaded;
    if (!checkpoints.folder.empty() && checkpoints.resume) loaded = LoadValues();
    Create();
    if (!loaded.empty()) LoadState(loaded);
  }
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  /// The first step of this run. Not 0 after a checkpoint.
  uint64_t first_step() const { return options_.first_step; }
  /// The optimizer's state of this server's shards. A shard has the name of its variable, or
  /// "part_<i>_of_<n>/<variable>".
  std::vector<NamedBuffer> state() { return update_->state(); }

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
      update_->Release();
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
            told.update_s, told.copy_s, told.cpu_s,          SecondsOfUpdates()};
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
  using Clock = std::chrono::steady_clock;

  // The variables that are parameters of the optimizer.
  std::vector<NamedTensor> Trained() const {
    const auto count = static_cast<std::ptrdiff_t>(optimizer_.parameters().size());
    return {variables_.begin(), variables_.begin() + count};
  }

  void CheckOptimizer() const {
    const std::vector<Parameter>& parameters = optimizer_.parameters();
    bool same = parameters.size() <= variables_.size();
    for (size_t i = 0; same && i < parameters.size(); ++i)
      same = parameters[i].name == variables_[i].name &&
             parameters[i].value.count == variables_[i].buffer.count &&
             parameters[i].value.dtype == variables_[i].buffer.dtype;
    if (!same)
      throw Error(
          ErrorCode::kInvalidArgument,
          "the parameters of a ParameterServer's optimizer differ from its variables; expected the "
          "same names, counts and dtypes in the same order");
    for (const Parameter& parameter : parameters)
      if (parameter.value.device >= 0)
        throw Error(
            ErrorCode::kUnavailable, "ParameterServer: parameter '" + parameter.name +
                                         "' lies on GPU " + std::to_string(parameter.value.device) +
                                         "; expected host memory");
  }

  CheckpointManager Reading() const {
    CheckpointOptions options;
    options.read_only = true;
    return CheckpointManager(job_.world(), checkpoints_.folder, options);
  }

  // Returns the name of the checkpoint; "" if there is none. All servers load the same checkpoint,
  // because no server saves before all servers are connected.
  std::string LoadValues() {
    if (!std::filesystem::is_directory(checkpoints_.folder)) return "";
    LoadOptions options;
    options.allow_unexpected = true;  // tensors of the optimizer
    const Loaded loaded = Reading().Load(Trained(), options);
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
    told.min_partition_bytes = options_.partitioner.ToC();
    told.workers = WorkersOf(job_, options_);
    told.readers = HasEvaluator(job_, options_) ? 1 : 0;
    dtrun_parameter_server* server = nullptr;
    detail::Check(
        dtrun_parameter_server_create(job_.handle(), list.data(), list.size(), &told, &server));
    handle_.reset(server);
    const size_t count = dtrun_parameter_server_shard_count(server);
    for (size_t i = 0; i < count; ++i) AddShard(i);
    update_ = detail::MakeShardUpdate(optimizer_, places_);
  }

  void AddShard(size_t index) {
    dtrun_parameter_shard shard{};
    detail::Check(dtrun_parameter_server_shard(handle_.get(), index, &shard));
    const NamedTensor& variable = variables_[shard.variable];
    if (shard.variable >= optimizer_.parameters().size()) {
      settings_shards_.push_back(index);
      return;
    }
    detail::ShardPlace place;
    place.shard = detail::ShardName(variable.name, shard.part, shard.parts);
    place.variable = variable.name;
    place.first = shard.first;
    place.count = shard.value.count;
    place.whole = variable.buffer.count;
    place.index = shard.variable;
    place.value = detail::FromC(shard.value);
    places_.push_back(std::move(place));
  }

  void LoadState(const std::string& checkpoint) {
    detail::LoadedState state(update_->state(), places_);
    LoadOptions options;
    options.name = checkpoint;
    options.allow_unexpected = true;  // the values
    Reading().Load(state.tensors(), options);
    state.Take();
  }

  void Start() {
    const std::vector<NamedTensor> state = TensorsOf(update_->state());
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
      Mark();
      // The settings come behind the parameters, so their shards come last.
      for (const size_t shard : settings_shards_) {
        const auto* const first = static_cast<const double*>(gradients[shard]);
        optimizer_.set_step_settings({first, first + optimizer_.step_settings().size()});
      }
      update_->Step(gradients);
      return 0;
    } catch (...) {
      failure_ = std::current_exception();
      return 1;
    }
  }

  void Mark() {
    const int64_t now = Clock::now().time_since_epoch().count();
    if (first_update_ == 0) first_update_ = now;
    last_update_ = now;
  }
  double SecondsOfUpdates() const {
    return std::chrono::duration<double>(Clock::duration(last_update_ - first_update_)).count();
  }

  uint64_t WaitFor(uint64_t step) {
    uint64_t done = 0;
    detail::Check(dtrun_parameter_server_wait(handle_.get(), step, &done));
    return done;
  }

  // Pulls the variables as any reader does, and saves them while the workers continue.
  void Coordinate() {
    ParameterReader reader(job_, variables_, options_);
    CheckpointOptions kept;
    kept.max_to_keep = checkpoints_.max_to_keep;
    kept.discard = checkpoints_.folder.empty();
    CheckpointManager manager(job_.world(), checkpoints_.folder, kept);
    const bool regular = checkpoints_.every_steps > 0 && !kept.discard;
    const uint64_t every = regular ? checkpoints_.every_steps : UINT64_MAX;
    uint64_t done = options_.first_step;
    for (bool more = true; more;) {
      const uint64_t next = done + std::min(every - done % every, options_.steps - done);
      const uint64_t before = std::exchange(done, WaitFor(next));
      more = done >= next && done < options_.steps;  // otherwise the training has ended
      reader.Pull();
      if (done > before && !kept.discard) Save(manager, reader, done);
    }
    Quietly([&] { manager.Wait(); });
  }

  void Save(CheckpointManager& manager, ParameterReader& reader, uint64_t step) {
    SaveOptions save;
    save.step = step;
    const detail::GatheredState state(reader.ReadState());
    std::vector<NamedTensor> tensors = Trained();
    for (const NamedTensor& tensor : state.tensors()) tensors.push_back(tensor);
    Quietly([&] { manager.StartSave(save, tensors); });
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
  Optimizer& optimizer_;
  ParameterServerOptions options_;
  ParameterCheckpoints checkpoints_;
  std::vector<detail::ShardPlace> places_;
  std::vector<size_t> settings_shards_;                    // behind the shards of places_
  std::atomic<int64_t> first_update_{0}, last_update_{0};  // in ticks of Clock
  std::exception_ptr failure_, not_saved_;
  std::unique_ptr<detail::ShardUpdate> update_;
  std::unique_ptr<
      dtrun_parameter_server,
      detail::Destroyer<dtrun_parameter_server, dtrun_parameter_server_destroy>>
      handle_;  // its thread uses all members above
};

}  // namespace dtrun

#endif
