#ifndef DTRUN_DETAIL_LOSS_SCALE_OPTIMIZER_H_
#define DTRUN_DETAIL_LOSS_SCALE_OPTIMIZER_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/block_device.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/sliceable_optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// The options of a loss scale. The same on all ranks.
struct LossScaleOptions {
  /// True: the scale follows the gradients. False: the scale never changes, and steps with an
  /// overflow are skipped.
  bool dynamic = true;
  double initial_scale = 32768;     ///< 1 to 2^127
  uint64_t growth_interval = 2000;  ///< the scale doubles after this many good steps in a row
  /// Step() throws after this many skipped steps in a row. 0: no limit.
  uint64_t most_skipped_steps = 50;
};

/// A loss scale and its counts of steps.
struct LossScale {
  double scale = 1;               ///< 1 to 2^127
  uint64_t good_steps = 0;        ///< in a row, since the last change of the scale
  uint64_t skipped_steps = 0;     ///< since the start of training
  uint64_t skipped_in_a_row = 0;  ///< up to now

  /// True if all numbers are equal.
  bool operator==(const LossScale& other) const {
    return scale == other.scale && good_steps == other.good_steps &&
           skipped_steps == other.skipped_steps && skipped_in_a_row == other.skipped_in_a_row;
  }
};

namespace detail {

/// "1024", "0.5"
inline std::string TextOfScale(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", number);
  return text;
}

constexpr double kLargestLossScale = 0x1p127;  // finite as f32

/// Throws kInvalidArgument if a scale is out of range. `name`: "initial_scale".
inline void CheckLossScale(const std::string& name, double scale) {
  if (scale >= 1 && scale <= kLargestLossScale) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "LossScaleOptimizer: " + name + " is " + TextOfScale(scale) + "; expected 1 to 2^127");
}

/// Throws kInvalidArgument if an option is out of range.
inline void CheckLossScale(const LossScaleOptions& options) {
  CheckLossScale("initial_scale", options.initial_scale);
  if (options.dynamic && options.growth_interval == 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        "LossScaleOptimizer: growth_interval is 0; expected 1 or more, or a fixed scale (dynamic = "
        "false)");
}

/// The options as text, to compare ranks.
inline std::string TextOf(const LossScaleOptions& options) {
  return std::string(", loss scale ") + (options.dynamic ? "dynamic" : "fixed") + " from " +
         TextOfScale(options.initial_scale) + ", growth_interval " +
         std::to_string(options.growth_interval) + ", most_skipped_steps " +
         std::to_string(options.most_skipped_steps);
}

/// Changes the scale after a step. `is_finite`: all gradients of the step were finite. `culprit`
/// returns the subject of the error, for example "the gradient of 'weight'".
template <typename Culprit>
void UpdateLossScale(
    LossScale& scale, const LossScaleOptions& options, bool is_finite, const Culprit& culprit) {
  if (is_finite) {
    scale.skipped_in_a_row = 0;
    if (!options.dynamic || ++scale.good_steps < options.growth_interval) return;
    scale.good_steps = 0;
    if (scale.scale <= kLargestLossScale / 2) scale.scale *= 2;
    return;
  }
  const double used = scale.scale;
  scale.good_steps = 0;
  ++scale.skipped_steps;
  if (options.dynamic) scale.scale = std::max(1.0, scale.scale / 2);
  if (++scale.skipped_in_a_row == options.most_skipped_steps)
    throw Error(
        ErrorCode::kInvalidArgument,
        "LossScaleOptimizer: " + culprit() + " is infinite or NaN with the loss scale " +
            TextOfScale(used) + ", in " + std::to_string(options.most_skipped_steps) +
            " steps in a row; the loss itself is not finite, or the scale is too large");
}

}  // namespace detail

/// Wraps an optimizer for training with a scaled loss, which keeps small gradients above zero in
/// f16 (P. Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2). The trainer
/// multiplies the loss by `loss_scale()`, or the gradient from which the backward pass starts.
/// `Step()` divides the gradients by the scale and lets the inner optimizer step. If a gradient is
/// infinite or NaN, `Step()` changes no parameter and no state of the inner optimizer. With a
/// dynamic scale, it also halves the scale, which doubles again after many good steps.
///
///   LossScaleOptimizer scaled(adam);
///   DistributedOptimizer optimizer(job.world(), scaled);
///   for (...) {
///     backward(optimizer.loss_scale() * loss);
///     optimizer.Step();
///   }
///
/// It goes inside a DistributedOptimizer, a ShardedOptimizer or the optimizer of a Strategy. Then
/// all ranks take or skip a step together and have the same scale: an overflow on one rank is in
/// the sum of all ranks' gradients, or the ranks tell each other. Clipping uses the norm without
/// the scale. The checks of `check_every` accept gradients that are not finite.
///
/// Parameters are f32 or f64: keep the values of a network that computes in f16 as f32. The scale
/// belongs to `state()`, so checkpoints keep it; a checkpoint without a scale cannot continue with
/// one. A ShardedOptimizer needs norms then, which takes a second pass over memory. Not
/// thread-safe.
class LossScaleOptimizer : public SliceableOptimizer {
 public:
  /// `inner` outlives this object. Errors: kInvalidArgument (an option out of range, a parameter
  /// that is not f32 or f64, a DistributedOptimizer as `inner`).
  explicit LossScaleOptimizer(Optimizer& inner, const LossScaleOptions& options = {})
      : inner_(inner), sliceable_(AsSliceable(inner)), options_(options) {
    detail::CheckLossScale(options);
    if (inner.StepsTogether())
      throw Error(
          ErrorCode::kInvalidArgument,
          "LossScaleOptimizer: the inner optimizer is a DistributedOptimizer; expected the "
          "LossScaleOptimizer inside the DistributedOptimizer");
    scale_.scale = options.initial_scale;
    if (sliceable_ != nullptr) slots_ = sliceable_->slots();
    for (const Parameter& parameter : inner.parameters()) CheckParameter(parameter);
  }

  /// The factor for the loss of the next step.
  double loss_scale() const override { return scale_.scale; }
  /// The scale and the counts of steps.
  const LossScale& state_of_scale() const { return scale_; }
  /// Continues with another scale, for example from a checkpoint. All ranks pass the same, between
  /// steps. kInvalidArgument: the scale is not 1 to 2^127.
  void set_state_of_scale(const LossScale& scale) {
    detail::CheckLossScale("the scale", scale.scale);
    scale_ = scale;
  }

  std::vector<Parameter>& parameters() override { return inner_.parameters(); }
  /// The inner optimizer's state and "loss_scale/scale" (f64), "loss_scale/good_steps",
  /// "loss_scale/skipped_steps" and "loss_scale/skipped_in_a_row" (u64).
  std::vector<NamedBuffer> state() override {
    std::vector<NamedBuffer> all = inner_.state();
    AppendScale(all);
    return all;
  }
  bool TakesRows() const override { return inner_.TakesRows(); }
  bool TakesOverflow() const override { return true; }
  std::string SharedSettings() const override { return detail::TextOf(options_); }

  void Agree(Communicator& ranks, bool has_gradients) override {
    std::optional<size_t> found;
    if (has_gradients) found = FirstOverflow();
    uint8_t mine = found ? 1 : 0;
    std::vector<uint8_t> all(static_cast<size_t>(ranks.size()));
    ranks.AllGather(Buffer(&mine, 1), Buffer(all.data(), all.size()));
    Decide(std::find(all.begin(), all.end(), uint8_t{1}) == all.end(), found);
    agreed_ = has_gradients;  // otherwise no Step() follows
  }

  /// Takes or skips the step. kInvalidArgument: `most_skipped_steps` steps in a row have been
  /// skipped, so the loss itself is not finite. The text names a parameter. Do not use the wrappers
  /// of this object afterwards.
  void Step() override {
    if (!std::exchange(agreed_, false)) {
      const std::optional<size_t> found = FirstOverflow();
      Decide(!found, found);
    }
    if (!takes_step_) return;
    for (const Buffer& gradient : Gradients()) detail::Multiply(gradient, 1 / used_);
    inner_.Step();
  }

  // As a SliceableOptimizer: all ranks know the norms of all gradients, and a norm shows whether
  // the gradient is finite.

  bool can_slice() const override { return sliceable_ != nullptr; }
  std::vector<StateSlot> slots() const override { return slots_; }
  std::vector<NamedBuffer> scalars() override {
    std::vector<NamedBuffer> all = sliceable_->scalars();
    AppendScale(all);
    return all;
  }
  bool needs_norms() const override { return true; }
  void SetNorms(const std::vector<ParameterNorms>& norms) override {
    std::optional<size_t> found;
    std::vector<ParameterNorms> unscaled = norms;
    for (size_t i = 0; i < norms.size(); ++i) {
      if (!found && !std::isfinite(norms[i].gradient)) found = i;
      unscaled[i].gradient /= scale_.scale;
    }
    Decide(!found, found);
    if (takes_step_ && sliceable_->needs_norms()) sliceable_->SetNorms(unscaled);
  }
  void BeginStep() override {
    if (takes_step_) sliceable_->BeginStep();
  }
  void StepSlice(const ParameterSlice& slice) override {
    if (!takes_step_) return;
    Buffer gradient = parameters()[slice.parameter].value;
    if (gradient.device >= 0) {
      // The memory belongs to this step, and each of its elements is in one slice.
      gradient.data = const_cast<void*>(slice.gradient);
      gradient.count = slice.count;
      detail::Multiply(gradient, 1 / used_);
      return sliceable_->StepSlice(slice);
    }
    if (gradient.dtype == DType::kF64)
      StepPieces<double>(slice);
    else
      StepPieces<float>(slice);
  }
  /// The inner optimizer's formula, for gradients with the scale.
  std::optional<MomentumRule> momentum_rule() const override {
    if (!takes_step_) return std::nullopt;
    std::optional<MomentumRule> rule = sliceable_->momentum_rule();
    if (rule) {
      rule->take /= used_;
      rule->by_gradient /= used_;
      rule->decay *= used_;
    }
    return rule;
  }

 private:
  static constexpr uint64_t kPiece = 2048;  // elements; they stay in the core's first cache

  static void CheckParameter(const Parameter& parameter) {
    const DType dtype = parameter.value.dtype;
    if (dtype != DType::kF32 && dtype != DType::kF64)
      throw Error(
          ErrorCode::kInvalidArgument, "LossScaleOptimizer: parameter '" + parameter.name +
                                           "' is " + NameOf(dtype) + "; expected f32 or f64");
  }

  void AppendScale(std::vector<NamedBuffer>& state) {
    state.push_back({"loss_scale/scale", Buffer(&scale_.scale, 1)});
    state.push_back({"loss_scale/good_steps", Buffer(&scale_.good_steps, 1)});
    state.push_back({"loss_scale/skipped_steps", Buffer(&scale_.skipped_steps, 1)});
    state.push_back({"loss_scale/skipped_in_a_row", Buffer(&scale_.skipped_in_a_row, 1)});
  }

  // The gradients of this step, and the parameters that they belong to.
  std::vector<Buffer> Gradients(std::vector<size_t>* parameters = nullptr) const {
    std::vector<Buffer> gradients;
    const std::vector<Parameter>& list = inner_.parameters();
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].has_gradient) continue;
      for (const Buffer& each : {list[i].gradient, list[i].rows.values}) {
        if (each.data == nullptr || each.count == 0) continue;
        gradients.push_back(each);
        if (parameters != nullptr) parameters->push_back(i);
      }
    }
    return gradients;
  }

  std::optional<size_t> FirstOverflow() const {
    std::vector<size_t> parameters;
    const std::optional<size_t> found = detail::FindNonFinite(Gradients(&parameters));
    return found ? std::optional<size_t>(parameters[*found]) : std::nullopt;
  }

  // `found`: the first parameter with an overflow, if this rank knows it.
  void Decide(bool is_finite, std::optional<size_t> found) {
    detail::CheckLossScale("the scale", scale_.scale);
    used_ = scale_.scale;
    takes_step_ = is_finite;
    detail::UpdateLossScale(scale_, options_, is_finite, [&] {
      return found ? "the gradient of '" + inner_.parameters()[*found].name + "'"
                   : std::string("a gradient of another rank");
    });
  }

  template <typename T>
  void StepPieces(const ParameterSlice& slice) {
    const T factor = static_cast<T>(1 / used_);
    T scratch[kPiece];
    std::vector<void*> slots(slots_.size());
    for (uint64_t begin = 0; begin < slice.count; begin += kPiece) {
      const uint64_t count = std::min(kPiece, slice.count - begin);
      const T* const gradient = static_cast<const T*>(slice.gradient) + begin;
      for (uint64_t i = 0; i < count; ++i) scratch[i] = gradient[i] * factor;
      for (size_t s = 0; s < slots_.size(); ++s)
        slots[s] = static_cast<char*>(slice.slots[s]) +
                   begin * SizeOf(SlotDType(slots_[s], inner_.parameters()[slice.parameter]));
      sliceable_->StepSlice(
          {slice.parameter, slice.first + begin, count, scratch,
           static_cast<T*>(slice.value) + begin, slots.data()});
    }
  }

  Optimizer& inner_;
  SliceableOptimizer* sliceable_;  // `inner_`; null if it cannot be cut into slices
  LossScaleOptions options_;
  LossScale scale_;
  std::vector<StateSlot> slots_;  // of sliceable_

  // Of this step.
  double used_ = 1;         // the scale of the gradients
  bool takes_step_ = true;  // all gradients are finite
  bool agreed_ = false;     // Agree has decided
};

}  // namespace dtrun

#endif
