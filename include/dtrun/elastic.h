#ifndef DTRUN_ELASTIC_H_
#define DTRUN_ELASTIC_H_

#include <dtrun/c.h>
#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/state_broadcast.h>

#include <algorithm>
#include <cstdint>
#include <functional>
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
/// Context::launch_size. An optimizer that keeps different state on each rank (ShardedOptimizer,
/// kAdasum) cannot be kept. Not thread-safe.
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
  void Keep(std::function<void(Communicator& ranks, int root)> broadcast) {
    broadcasts_.push_back(std::move(broadcast));
  }

  /// The number of steps that the kept values have behind them.
  uint64_t step() const { return step_; }
  /// Says that the kept values are those after one more step.
  void EndStep() { ++step_; }
  /// The epoch of the job in the last call of `work`: see Context::losses.
  uint32_t losses() const { return losses_; }

  /// RunElastic with the kept values: before each call of `work`, they are those of the rank that
  /// has made the most steps. At first no rank has made a step, and each has its own values.
  /// kMismatch: the ranks keep different values.
  template <typename Body>
  auto Run(const Body& work) {
    return RunElastic(
        [&](Context& job) {
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
    detail::CheckSameText(job.world(), "kept values", Description());
    std::vector<uint64_t> steps(static_cast<size_t>(job.size()));
    job.world().AllGather(Buffer(&step_, 1), Buffer(steps.data(), steps.size()));
    const auto furthest = std::max_element(steps.begin(), steps.end());
    if (*furthest == 0) return;
    const int root = static_cast<int>(furthest - steps.begin());
    BroadcastBuffers(job.world(), kept_, root);
    for (const auto& broadcast : broadcasts_) broadcast(job.world(), root);
    step_ = *furthest;
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
  std::vector<std::function<void(Communicator&, int)>> broadcasts_;
  uint64_t step_ = 0;
  uint32_t losses_ = 0;
};

}  // namespace dtrun

#endif
