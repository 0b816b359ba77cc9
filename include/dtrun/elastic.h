#ifndef DTRUN_ELASTIC_H_
#define DTRUN_ELASTIC_H_

#include <dtrun/c.h>
#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/detail/block_device.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/detail/kept_shards.h>
#include <dtrun/detail/sharded_state.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/sharded_optimizer.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtrun {

namespace detail {

/// Whether the job has lost ranks and goes on without an end of this process. Then `job` may only
/// be destroyed. `error` is the error with which the work of this rank ended.
inline bool Recovers(Context& job, const Error& error) {
  int32_t recovers = 0;
  Check(dtrun_await_recovery(job.handle(), static_cast<int32_t>(error.code()), &recovers));
  return recovers != 0;
}

}  // namespace detail

/// Runs `work` as a rank of its job, from Init to Shutdown. If `dtrun --restarts` starts a lost
/// rank again, this process stays, and calls `work` again when all ranks have met. `work` gets the
/// Context and returns a value or nothing; its last result is returned. Throws the errors of Init,
/// `work` and Shutdown that no lost rank explains.
///
/// All objects that `work` makes from its Context end when it returns or throws. The caller keeps
/// the values for the next call outside, for example in an Elastic.
template <typename Body>
auto RunElastic(const Body& work, const Options& options = {}) {
  for (;;) {
    Context job = Init(options);
    try {
      if constexpr (std::is_void_v<decltype(work(job))>) {
        work(job);
        job.Shutdown();
        return;
      } else {
        auto result = work(job);
        job.Shutdown();
        return result;
      }
    } catch (const Error& error) {
      if (!detail::Recovers(job, error)) throw;
    }
  }
}

/// A training loop that survives lost ranks. The values that a step changes live outside the loop,
/// and are named here. After a loss, all ranks get the values of the rank that has made the most
/// steps, and the loop goes on with the next step. No step is lost, as long as one rank is left.
///
///   dtrun::Elastic elastic;
///   elastic.Keep(sgd);                            // parameters and state of an optimizer
///   elastic.Run([&](dtrun::Context& job) {
///     dtrun::DistributedOptimizer optimizer(job.world(), sgd);
///     for (; elastic.step() < 1000; elastic.EndStep()) {
///       Backward(BatchOf(elastic.step(), job.rank(), job.size()));
///       optimizer.Step();
///     }
///   });
///
/// Between Step() and EndStep() there is no other collective call: the steps of two ranks differ by
/// at most one. The size of the job may change from call to call (`dtrun --min-np`), but not
/// Context::launch_size. If a loss ends all processes (`dtrun --restarts` with mpirun), EndStep
/// also keeps the values in memory of the host, and at most one step is lost. A ShardedOptimizer is
/// kept by Keep(ShardedOptimizer&), inside the function. An optimizer with kAdasum cannot be kept.
/// Not thread-safe.
class Elastic {
 public:
  /// `options` are those of Init.
  explicit Elastic(Options options = {}) : options_(std::move(options)) {}

  /// Keeps `buffer`, which has the same size on all ranks and outlives this object. Call Keep
  /// before Run, on all ranks in the same order.
  void Keep(const std::string& name, const Buffer& buffer) { kept_.push_back({name, buffer}); }
  /// Keeps the values of the optimizer's parameters and its state. The optimizer outlives this
  /// object and has no gradient memory from a DistributedOptimizer.
  void Keep(Optimizer& optimizer) {
    for (const Parameter& parameter : optimizer.parameters()) Keep(parameter.name, parameter.value);
    for (const NamedBuffer& state : optimizer.state()) Keep(state.name, state.buffer);
    optimizers_.push_back({&optimizer, GradientsOf(optimizer)});
  }

  /// Keeps values of any kind: `broadcast` makes those of all ranks equal to those of rank `root`.
  /// It is collective, and called after a loss.
  ///
  /// If a loss ends all processes (`dtrun --restarts` with mpirun), no rank has the values any
  /// more: `save` returns them as bytes after each step, and `load` takes them from these bytes
  /// before `broadcast`. Both are local. Without them, such a job goes on from its beginning.
  void Keep(
      std::function<void(Communicator& ranks, int root)> broadcast,
      std::function<std::string()> save = nullptr,
      std::function<void(const std::string& bytes)> load = nullptr) {
    broadcasts_.push_back({std::move(broadcast), std::move(save), std::move(load)});
  }

  /// Keeps the values and the state of a ShardedOptimizer, of which each rank has only a share.
  /// Collective. Call it in the function of Run, after the optimizer is made: after a loss, it
  /// gives the optimizer the kept values and state.
  ///
  /// After every `every` steps, each rank copies its share into memory of its host, which outlives
  /// the rank; on one host, the step itself copies the state. If there are several hosts, it also
  /// sends the share to a rank of another host, while the next steps compute. After a loss, at most
  /// 2 * every - 1 steps are computed again, and all values kept by this object are those of the
  /// step with which the loop goes on. The memory holds two snapshots of each share and of each
  /// copy: copies() says how many bytes.
  ///
  /// kInvalidArgument: a second optimizer, a value that is kept by functions without `save` and
  /// `load`, or a call outside the function of Run. If a host and the host with its copies are lost
  /// together, the error is kUnavailable on all ranks. If a loss ends all processes (`dtrun
  /// --restarts` with mpirun), the loop starts from its beginning.
  void Keep(ShardedOptimizer& optimizer, uint64_t every = 1) {
    Keep(std::make_unique<detail::OptimizerShards>(optimizer), every);
  }
  /// The same for another optimizer whose state is spread over the ranks.
  void Keep(std::unique_ptr<detail::ShardedState> state, uint64_t every) {
    const auto refuse = [](const std::string& why) {
      throw Error(ErrorCode::kInvalidArgument, "Elastic::Keep of a ShardedOptimizer: " + why);
    };
    if (running_ == nullptr) refuse("expected a call in the function of Run");
    if (!CanSave()) refuse("a value is kept by a function alone; expected `save` and `load`");
    if (shards_ == nullptr) shards_ = std::make_unique<detail::KeptShards>();
    if (shards_->attached()) refuse("found a second optimizer; expected one");
    shards_->Attach(
        std::move(state), running_->world(), running_->cross_rank(), losses_, step_, every,
        Saved());
  }

  /// The cost of the copies of a ShardedOptimizer on this rank.
  struct Copies {
    uint64_t held_bytes = 0,  ///< in memory, of this rank's snapshots and copies
        copy_bytes = 0;       ///< sent to another host for each copy; 0: there is one host
    double pack_s = 0,        ///< in which the training packed snapshots after steps, in all
        wait_s = 0;           ///< in which a step waited for copies, in all
  };
  /// All zeros if none is kept.
  Copies copies() const {
    if (shards_ == nullptr) return {};
    const detail::KeptShards::Cost cost = shards_->cost();
    return {cost.held_bytes, cost.copy_bytes, cost.pack_s, cost.wait_s};
  }

  /// The number of steps that the kept values have behind them.
  uint64_t step() const { return step_; }
  /// Says that the kept values are those after one more step.
  void EndStep() {
    ++step_;
    if (shards_ == nullptr) {
      if (job_ != nullptr) job_->KeepState(name_, step_, Saved());
      return;
    }
    if (!shards_->attached())
      throw Error(
          ErrorCode::kInvalidArgument,
          "Elastic::EndStep: this call of the function has not kept its ShardedOptimizer; expected "
          "Keep(optimizer) in each call");
    shards_->Take(step_, [this] { return Saved(); });
  }
  /// The epoch of the job in the last call of `work`: see Context::losses.
  uint32_t losses() const { return losses_; }

  /// RunElastic with the kept values: before each call of `work`, they are those of the rank that
  /// has made the most steps. At first no rank has made a step, and each has its own values.
  /// kMismatch: the ranks keep different values. kUnavailable: the ranks with the values of the
  /// last step were lost while they gave them to the others.
  template <typename Body>
  auto Run(const Body& work) {
    return RunElastic(
        [&](Context& job) {
          const Attachment attachment(*this, job);
          Begin(job);
          return work(job);
        },
        options_);
  }

 private:
  struct KeptOptimizer {
    Optimizer* optimizer;
    std::vector<Buffer> gradients;  // before a DistributedOptimizer gave memory
  };

  struct KeptByFunctions {
    std::function<void(Communicator&, int)> broadcast;
    std::function<std::string()> save;
    std::function<void(const std::string&)> load;
  };

  // EndStep keeps the state in the job of the present call of `work`, if the job wants it.
  class Attachment {
   public:
    Attachment(Elastic& elastic, Context& job) : elastic_(elastic) {
      elastic.running_ = &job;
      if (job.keeps_state() && elastic.CanSave()) elastic.job_ = &job;
    }
    ~Attachment() {
      elastic_.job_ = elastic_.running_ = nullptr;
      if (elastic_.shards_ != nullptr) elastic_.shards_->Detach();
    }
    Attachment(const Attachment&) = delete;
    Attachment& operator=(const Attachment&) = delete;

   private:
    Elastic& elastic_;
  };

  // A process may make several objects, in the same order as the processes before it.
  static std::string NextName() {
    static std::atomic<int> made{0};
    return "elastic." + std::to_string(made++);
  }

  bool CanSave() const {
    return std::all_of(broadcasts_.begin(), broadcasts_.end(), [](const KeptByFunctions& kept) {
      return kept.save != nullptr && kept.load != nullptr;
    });
  }

  // Each value in bytes, after its size.
  std::string Saved() const {
    std::string bytes;
    const auto append = [&](const void* data, uint64_t size) {
      bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
      bytes.append(static_cast<const char*>(data), size);
    };
    for (const NamedBuffer& kept : kept_) {
      std::string value(kept.buffer.bytes(), '\0');
      detail::Copy(kept.buffer, Buffer(value.data(), kept.buffer.count, kept.buffer.dtype));
      append(value.data(), value.size());
    }
    for (const KeptByFunctions& kept : broadcasts_) {
      const std::string value = kept.save();
      append(value.data(), value.size());
    }
    return bytes;
  }

  // Takes the values that an earlier process of this host has kept. The next broadcast makes them
  // those of all ranks.
  void Load(Context& job) {
    const std::optional<KeptStep> found = job.LoadState(name_);
    if (!found || found->step <= step_) return;
    Take(found->state);
    step_ = found->step;
    is_overwritten_ = false;
  }

  // Takes values from the bytes of Saved.
  void Take(const std::string& state) {
    size_t at = 0;
    const auto next = [&] {
      uint64_t size = 0;
      const bool has_size = state.size() - at >= sizeof size;
      if (has_size) std::memcpy(&size, state.data() + at, sizeof size);
      at += sizeof size;
      if (!has_size || state.size() - at < size)
        throw Error(ErrorCode::kMismatch, "the kept state is of a training with other values");
      at += size;
      return state.substr(at - size, size);
    };
    for (const NamedBuffer& kept : kept_) {
      std::string value = next();
      if (value.size() != kept.buffer.bytes())
        throw Error(ErrorCode::kMismatch, "the kept state has another size of " + kept.name);
      detail::Copy(Buffer(value.data(), kept.buffer.count, kept.buffer.dtype), kept.buffer);
    }
    for (const KeptByFunctions& kept : broadcasts_) kept.load(next());
  }

  static std::vector<Buffer> GradientsOf(Optimizer& optimizer) {
    std::vector<Buffer> gradients;
    for (const Parameter& parameter : optimizer.parameters())
      gradients.push_back(parameter.gradient);
    return gradients;
  }

  // The gradient memory of a DistributedOptimizer has ended with it.
  void Begin(Context& job) {
    losses_ = job.losses();
    for (KeptOptimizer& kept : optimizers_)
      for (size_t i = 0; i < kept.gradients.size(); ++i)
        kept.optimizer->parameters()[i].gradient = kept.gradients[i];
    if (job_ != nullptr) Load(job);
    detail::CheckSameText(job.world(), "kept values", Description());
    uint64_t mine[] = {step_, shards_ != nullptr ? 1u : 0u, is_overwritten_ ? 1u : 0u};
    std::vector<uint64_t> all(3 * static_cast<size_t>(job.size()));
    job.world().AllGather(Buffer(mine, 3), Buffer(all.data(), all.size()));
    int root = 0;  // the rank with the most steps
    bool sharded = false, overwritten = false;
    for (size_t r = 0; 3 * r < all.size(); ++r) {
      if (all[3 * r] > all[3 * static_cast<size_t>(root)]) root = static_cast<int>(r);
      sharded = sharded || all[3 * r + 1] != 0;
      overwritten = overwritten || all[3 * r + 2] != 0;
    }
    uint64_t step = all[3 * static_cast<size_t>(root)];
    if (sharded) {
      step_ = step;
      const std::optional<int> found = FindShards(job);
      if (!found) return;
      root = *found;
      step = step_;
    } else if (step == 0) {
      if (overwritten)
        throw Error(
            ErrorCode::kUnavailable,
            "the ranks that had the values of the last step were lost while they gave them to the "
            "others; the training begins again, at its last checkpoint if it loads one");
      return;
    } else if (step_ < step) {
      // If a rank is lost meanwhile, these are the values of no step.
      step_ = 0;
      is_overwritten_ = true;
    }
    BroadcastBuffers(job.world(), kept_, root);
    for (const KeptByFunctions& kept : broadcasts_) kept.broadcast(job.world(), root);
    step_ = step;
    is_overwritten_ = false;
  }

  // Goes back to the newest step of which all shares are there, and returns the rank with its
  // values. nullopt: no step was made.
  std::optional<int> FindShards(Context& job) {
    if (shards_ == nullptr) shards_ = std::make_unique<detail::KeptShards>();
    const std::optional<std::pair<uint64_t, int>> found = shards_->Find(job.world());
    if (!found && step_ == 0) return std::nullopt;
    if (!found)
      throw Error(
          ErrorCode::kUnavailable,
          "the ranks that held one share of a sharded optimizer's state were lost together; the "
          "training begins again, at its last checkpoint if it loads one");
    step_ = found->first;
    if (job.rank() == found->second) Take(shards_->equal_on_all());
    shards_->ShareEqual(job.world(), found->second);
    return found->second;
  }

  std::string Description() const {
    std::string text;
    for (const NamedBuffer& kept : kept_)
      text += (text.empty() ? "" : ", ") + kept.name + " (" + std::to_string(kept.buffer.bytes()) +
              " bytes)";
    return text;
  }

  Options options_;
  std::vector<NamedBuffer> kept_;
  std::vector<KeptOptimizer> optimizers_;
  std::vector<KeptByFunctions> broadcasts_;
  std::unique_ptr<detail::KeptShards> shards_;  // null: no ShardedOptimizer is kept
  std::string name_ = NextName();
  Context* job_ = nullptr;      // in which EndStep keeps the state; null: it does not
  Context* running_ = nullptr;  // of the present call of `work`
  uint64_t step_ = 0;
  bool is_overwritten_ = false;  // a broadcast has begun to overwrite the values, and has failed
  uint32_t losses_ = 0;
};

}  // namespace dtrun

#endif
