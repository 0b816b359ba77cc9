#ifndef DTRUN_DISTRIBUTED_OPTIMIZER_H_
#define DTRUN_DISTRIBUTED_OPTIMIZER_H_

#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/gradient_checks.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// Makes the parameters of all ranks equal to those of rank `root`. Collective.
inline void BroadcastParameters(
    Communicator& communicator, const std::vector<Parameter>& parameters, int root = 0) {
  std::vector<Work> works;
  for (const Parameter& parameter : parameters)
    works.push_back(communicator.StartBroadcast(parameter.value, root));
  for (Work& work : works) work.Wait();
}

/// Makes the optimizer's state (moments, step counts) of all ranks equal to that of rank `root`.
/// Collective.
inline void BroadcastOptimizerState(
    Communicator& communicator, Optimizer& optimizer, int root = 0) {
  std::vector<Work> works;
  for (const NamedBuffer& state : optimizer.state())
    works.push_back(communicator.StartBroadcast(state.buffer, root));
  for (Work& work : works) work.Wait();
}

/// What a DistributedOptimizer can be told. The same on all ranks: a difference is kMismatch.
struct DistributedOptions {
  /// kAverage, or kSum if the loss is already divided by the global batch.
  ReduceOp op = ReduceOp::kAverage;
  /// A reduction starts when this much is complete; 0: the option `bucket_bytes`.
  uint64_t bucket_bytes = 0;
  /// Backward passes before a step. The trainer's backward adds to the gradients, as it would in
  /// one process; they are reduced once, in the last pass, and `ZeroGradients()` clears them.
  int backward_passes_per_step = 1;
  /// The step uses the average of the passes instead of their sum. It costs nothing: the factor
  /// rides along with the reduction.
  bool average_aggregated_gradients = false;
  /// Of kAverage: gradients are divided by this before they are added and by the rest of the number
  /// of ranks after, so that a sum in 16 bits stays in range. In [1/1024, 1024].
  double gradient_predivide_factor = 1;
  /// Clips by the norm of all reduced gradients together; 0: never. They are f32 or f64.
  double max_gradient_norm = 0;
  /// Parameters that each rank keeps for itself: their gradients are not reduced.
  std::vector<std::string> local_parameters = {};
  /// Every so many steps, this one included that is a multiple of it: gradients that are infinite
  /// or no numbers, and parameters that are not the same on all ranks, are kMismatch on all ranks,
  /// with the first such parameter, the ranks and the step. 0: never.
  int check_every = 0;
};

/// Wraps an optimizer so that each step uses the gradients of all ranks: they are reduced in
/// buckets while the backward pass still runs, and `Step()` waits for them before the inner step.
/// No negotiation, no cycle; no copy of gradients that live in its block.
///
///   optimizer.MarkReady(i)   optional: as soon as the gradient of parameter i is complete
///   optimizer.Step()         reduces what was not marked, waits, and lets the inner optimizer step
///
/// Parameters without gradient memory get it here, in a block that every rank of the host maps. Not
/// thread-safe. The inner optimizer outlives it and keeps the gradient memory it gave; use it no
/// more after this object is gone.
class DistributedOptimizer : public Optimizer {
 public:
  /// Collective: all ranks wrap optimizers of the same parameters.
  DistributedOptimizer(
      Communicator& communicator, Optimizer& inner, DistributedOptions options = {})
      : communicator_(communicator.Duplicate()),
        inner_(inner),
        options_(std::move(options)),
        reduced_(ReducedOf(inner, options_)),
        reducer_(communicator_, GradientsOf(), SettingsOf(communicator_.size(), options_)) {
    CheckOptions();
    detail::CheckSameText(communicator_, "options of the optimizer", TextOf(options_));
    std::vector<Parameter>& parameters = inner_.parameters();
    place_.assign(parameters.size(), kLocal);
    for (size_t place = 0; place < reduced_.size(); ++place) {
      place_[reduced_[place]] = place;
      parameters[reduced_[place]].gradient = reducer_.gradient(place);
    }
    for (size_t i = 0; i < parameters.size(); ++i)
      if (place_[i] == kLocal && parameters[i].gradient.data == nullptr) GiveMemory(parameters[i]);
    marks_.assign(parameters.size(), 0);
  }

  /// Gradient `i` is complete in this pass; in the last pass of a step its reduction may start, and
  /// it must not be touched before `Step()` or `Synchronize()`. Marked more often than there are
  /// passes, it is kInvalidArgument.
  void MarkReady(size_t i) {
    if (no_sync_ > 0) return;
    if (i >= marks_.size())
      throw Error(
          ErrorCode::kInvalidArgument, "parameter " + std::to_string(i) +
                                           " does not exist; the optimizer has " +
                                           std::to_string(marks_.size()));
    if (synchronized_ || marks_[i] >= options_.backward_passes_per_step) ThrowMarkedTooOften(i);
    if (++marks_[i] == options_.backward_passes_per_step) Mark(i);
  }

  /// Reduces what was not marked, and returns when every gradient holds the result, before the step
  /// that would otherwise do it: for a trainer that looks at reduced gradients or changes them.
  /// Nothing, the second time and under NoSync().
  void Synchronize() {
    if (synchronized_ || no_sync_ > 0) return;
    for (size_t i = 0; i < marks_.size(); ++i)
      if (marks_[i] < options_.backward_passes_per_step) Mark(i);
    if (ChecksNow()) CheckFinite();
    reducer_.Wait();
    if (options_.max_gradient_norm > 0) Clip();
    synchronized_ = true;
  }

  /// Under NoSync() the inner optimizer steps with what this rank has.
  void Step() override {
    Synchronize();
    inner_.Step();
    if (no_sync_ > 0) return;
    if (ChecksNow()) CheckParameters();
    marks_.assign(marks_.size(), 0);
    synchronized_ = false;
    ++steps_;
  }

  /// Sets all gradients to zero, for the next step's backward passes to add to. Gradients that were
  /// marked and not stepped with are kInvalidArgument: peers may write them.
  void ZeroGradients() {
    if (!synchronized_ && std::any_of(marks_.begin(), marks_.end(), [this](int marks) {
          return marks >= options_.backward_passes_per_step;
        }))
      throw Error(
          ErrorCode::kInvalidArgument,
          "ZeroGradients() between the last backward pass and Step(): gradients are being reduced; "
          "call Step() or Synchronize() first");
    for (Parameter& parameter : inner_.parameters())
      if (parameter.gradient.count > 0)
        std::memset(parameter.gradient.data, 0, parameter.gradient.bytes());
  }

  /// While it lives, gradients are left as they are on this rank: a pass whose gradients are only
  /// added up is not counted. All ranks use it alike. Ends before the optimizer does.
  class [[nodiscard]] NoSyncScope {
   public:
    explicit NoSyncScope(int& scopes) : scopes_(&scopes) { ++*scopes_; }
    NoSyncScope(NoSyncScope&& other) noexcept : scopes_(std::exchange(other.scopes_, nullptr)) {}
    NoSyncScope& operator=(NoSyncScope&&) = delete;
    ~NoSyncScope() {
      if (scopes_ != nullptr) --*scopes_;
    }

   private:
    int* scopes_;
  };
  NoSyncScope NoSync() { return NoSyncScope(no_sync_); }

  /// The norm of the reduced gradients of the last step, before they were clipped; none without
  /// `max_gradient_norm`.
  std::optional<double> gradient_norm() const { return norm_; }

  /// Where the time of the steps went on this rank: see <dtrun/statistics.h>.
  ReducerStatistics statistics() const { return reducer_.statistics(); }

  std::vector<Parameter>& parameters() override { return inner_.parameters(); }
  std::vector<NamedBuffer> state() override { return inner_.state(); }

 private:
  static constexpr size_t kLocal = static_cast<size_t>(-1);

  static std::vector<size_t> ReducedOf(Optimizer& inner, const DistributedOptions& options) {
    const std::vector<Parameter>& parameters = inner.parameters();
    const auto& local = options.local_parameters;
    for (const std::string& name : local)
      if (std::none_of(parameters.begin(), parameters.end(), [&](const Parameter& parameter) {
            return parameter.name == name;
          }))
        throw Error(
            ErrorCode::kInvalidArgument,
            "local_parameters: the optimizer has no parameter '" + name + "'");
    std::vector<size_t> reduced;
    for (size_t i = 0; i < parameters.size(); ++i)
      if (std::find(local.begin(), local.end(), parameters[i].name) == local.end())
        reduced.push_back(i);
    return reduced;
  }

  std::vector<Gradient> GradientsOf() {
    std::vector<Gradient> gradients;
    for (const size_t i : reduced_) {
      const Parameter& parameter = inner_.parameters()[i];
      Buffer gradient = parameter.gradient;
      if (gradient.data == nullptr)
        gradient = Buffer(nullptr, parameter.value.count, parameter.value.dtype);
      gradients.push_back({parameter.name, gradient});
    }
    return gradients;
  }

  // The average over the ranks is a sum between two factors.
  static ReducerOptions SettingsOf(int size, const DistributedOptions& options) {
    Scale scale;
    if (options.average_aggregated_gradients && options.backward_passes_per_step > 0)
      scale.after = 1.0 / options.backward_passes_per_step;
    const double predivide = options.gradient_predivide_factor;
    if (predivide == 1 || options.op != ReduceOp::kAverage || !(predivide > 0))
      return {options.op, options.bucket_bytes, scale};
    return {ReduceOp::kSum, options.bucket_bytes, {1 / predivide, predivide / size * scale.after}};
  }

  void CheckOptions() const {
    const auto refuse = [](const std::string& text) {
      throw Error(ErrorCode::kInvalidArgument, "DistributedOptimizer: " + text);
    };
    if (options_.op != ReduceOp::kAverage && options_.op != ReduceOp::kSum)
      refuse(std::string("the reduce op is ") + NameOf(options_.op) + "; expected average or sum");
    if (options_.backward_passes_per_step < 1)
      refuse(
          "backward_passes_per_step is " + std::to_string(options_.backward_passes_per_step) +
          "; expected 1 or more");
    if (options_.gradient_predivide_factor != 1 && options_.op != ReduceOp::kAverage)
      refuse("gradient_predivide_factor goes with the reduce op average");
    if (!(options_.gradient_predivide_factor > 0))
      refuse(
          "gradient_predivide_factor is " + std::to_string(options_.gradient_predivide_factor) +
          "; expected more than 0");
    if (!(options_.max_gradient_norm >= 0))
      refuse(
          "max_gradient_norm is " + std::to_string(options_.max_gradient_norm) +
          "; expected 0 or more");
    if (options_.check_every < 0)
      refuse("check_every is " + std::to_string(options_.check_every) + "; expected 0 or more");
    for (const size_t i : reduced_) {
      const Parameter& parameter = inner_.parameters()[i];
      const DType dtype = parameter.value.dtype;
      if (options_.max_gradient_norm > 0 && dtype != DType::kF32 && dtype != DType::kF64)
        refuse(
            "max_gradient_norm: parameter '" + parameter.name + "' is " + NameOf(dtype) +
            "; expected f32 or f64");
    }
  }

  // Everything that is not compared with the plan of the reduction.
  static std::string TextOf(const DistributedOptions& options) {
    std::string text =
        "backward_passes_per_step " + std::to_string(options.backward_passes_per_step) +
        ", average_aggregated_gradients " +
        (options.average_aggregated_gradients ? "true" : "false") + ", max_gradient_norm " +
        std::to_string(options.max_gradient_norm) + ", check_every " +
        std::to_string(options.check_every) + ", gradient_predivide_factor " +
        std::to_string(options.gradient_predivide_factor);
    for (const std::string& name : options.local_parameters) text += ", local '" + name + "'";
    return text;
  }

  void GiveMemory(Parameter& parameter) {
    own_gradients_.emplace_back((parameter.value.bytes() + 7) / 8);
    parameter.gradient =
        Buffer(own_gradients_.back().data(), parameter.value.count, parameter.value.dtype);
  }

  // Its last pass is over.
  void Mark(size_t i) {
    marks_[i] = options_.backward_passes_per_step;
    if (ChecksNow() && !first_non_finite_ && detail::HasNonFinite(inner_.parameters()[i].gradient))
      first_non_finite_ = i;
    if (place_[i] != kLocal) reducer_.MarkReady(place_[i]);
  }

  [[noreturn]] void ThrowMarkedTooOften(size_t i) const {
    const int passes = options_.backward_passes_per_step;
    throw Error(
        ErrorCode::kInvalidArgument,
        "the gradient of '" + inner_.parameters()[i].name + "' was marked ready more than " +
            (passes == 1 ? "once" : std::to_string(passes) + " times") +
            " since the last step; call Step() before, set backward_passes_per_step to the passes "
            "of "
            "a step, or make further passes under NoSync()");
  }

  bool ChecksNow() const { return options_.check_every > 0 && steps_ % options_.check_every == 0; }
  std::string ThisStep() const { return " in step " + std::to_string(steps_); }

  // What each rank found before its gradients were reduced.
  void CheckFinite() {
    const int64_t mine = first_non_finite_ ? static_cast<int64_t>(*first_non_finite_) : int64_t{-1};
    first_non_finite_.reset();
    std::vector<int64_t> all(static_cast<size_t>(communicator_.size()));
    int64_t sent = mine;
    communicator_.AllGather(Buffer(&sent, 1), Buffer(all.data(), all.size()));
    const auto found = std::find_if(all.begin(), all.end(), [](int64_t i) { return i >= 0; });
    if (found == all.end()) return;
    std::vector<int> ranks;
    for (size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] == *found) ranks.push_back(static_cast<int>(rank));
    throw Error(
        ErrorCode::kMismatch,
        "the gradient of '" + inner_.parameters()[static_cast<size_t>(*found)].name +
            "' is infinite or no number on " + detail::RankList(ranks) + ThisStep());
  }

  void CheckParameters() {
    std::vector<uint64_t> mine;
    for (const size_t i : reduced_) mine.push_back(detail::DigestOf(inner_.parameters()[i].value));
    std::vector<uint64_t> all(mine.size() * static_cast<size_t>(communicator_.size()));
    communicator_.AllGather(Buffer(mine.data(), mine.size()), Buffer(all.data(), all.size()));
    for (size_t i = 0; i < mine.size(); ++i) {
      std::vector<int> others;
      for (size_t rank = 0; rank * mine.size() < all.size(); ++rank)
        if (all[rank * mine.size() + i] != all[i]) others.push_back(static_cast<int>(rank));
      if (others.empty()) continue;
      throw Error(
          ErrorCode::kMismatch, "parameter '" + inner_.parameters()[reduced_[i]].name + "' of " +
                                    detail::RankList(others) + " is not that of rank 0 any more" +
                                    ThisStep());
    }
  }

  void Clip() {
    double squares = 0;
    for (const size_t i : reduced_) squares += detail::SquaredNorm(inner_.parameters()[i].gradient);
    norm_ = std::sqrt(squares);
    if (!(*norm_ > options_.max_gradient_norm)) return;
    const double factor = options_.max_gradient_norm / (*norm_ + 1e-6);
    for (const size_t i : reduced_) detail::Multiply(inner_.parameters()[i].gradient, factor);
  }

  Communicator communicator_;  // of the checks
  Optimizer& inner_;
  DistributedOptions options_;
  std::vector<size_t> reduced_;  // parameters, in the reducer's order
  GradientReducer reducer_;
  std::vector<size_t> place_;                         // in the reducer, by parameter; or kLocal
  std::vector<std::vector<uint64_t>> own_gradients_;  // of local parameters that had none
  int64_t steps_ = 0;
  int no_sync_ = 0;  // scopes

  // Of this step.
  std::vector<int> marks_;  // passes, by parameter
  bool synchronized_ = false;
  std::optional<size_t> first_non_finite_ = std::nullopt;  // parameter
  std::optional<double> norm_ = std::nullopt;
};

}  // namespace dtrun

#endif
