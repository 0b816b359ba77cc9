#ifndef DTRUN_DETAIL_TORCH_LOSS_SCALE_H_
#define DTRUN_DETAIL_TORCH_LOSS_SCALE_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/loss_scale_optimizer.h>
#include <dtrun/detail/torch_hooks.h>
#include <dtrun/detail/torch_tensors.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {
namespace torch {

/// Wraps an optimizer of LibTorch for training with a scaled loss, as `GradScaler` does in Python.
/// See dtrun::LossScaleOptimizer for the rules. It is a
/// torch::optim::Optimizer, and it goes inside a DistributedOptimizer. All ranks then take or skip
/// a step together and have the same scale.
///
///   dtrun::torch::LossScaleOptimizer scaled(adam);
///   dtrun::torch::DistributedOptimizer optimizer(job.world(), scaled, *model);
///   for (...) {
///     optimizer.zero_grad();
///     scaled.Scale(loss(batch)).backward();
///     torch::nn::utils::clip_grad_norm_(model->parameters(), scaled.Scale(1.0));  // to clip at 1
///     optimizer.step();
///   }
///
/// Gradients hold the scale until step(). Parameters are f32, f64 or bf16. Not thread-safe. `save`
/// and `load` include the scale.
class LossScaleOptimizer : public ::torch::optim::Optimizer {
 public:
  /// `inner` outlives this object. Errors: kInvalidArgument (an option out of range, a parameter in
  /// f16, LBFGS, a DistributedOptimizer as `inner`).
  explicit LossScaleOptimizer(::torch::optim::Optimizer& inner, LossScaleOptions options = {})
      : LossScaleOptimizer(
            std::shared_ptr<::torch::optim::Optimizer>(std::shared_ptr<void>(), &inner), options) {}
  /// The same with an optimizer that this object keeps alive.
  explicit LossScaleOptimizer(
      std::shared_ptr<::torch::optim::Optimizer> inner, LossScaleOptions options = {})
      : Optimizer(CheckedGroups(inner.get()), DefaultsOf(inner.get())),
        inner_(std::move(inner)),
        options_(options),
        groups_(internal::Names{}) {
    detail::CheckLossScale(options);
    scale_.scale = options.initial_scale;
    for (const auto& group : param_groups_) groups_.Add(group);
  }

  /// The loss times the scale.
  Tensor Scale(const Tensor& loss) const { return loss * scale_.scale; }
  /// A norm times the scale, to clip gradients before step().
  double Scale(double norm) const { return norm * scale_.scale; }
  /// The scale and the counts of steps.
  const LossScale& scale() const { return scale_; }

  /// Decides together with other ranks, which step with different gradients, if the next step()
  /// changes parameters. A DistributedOptimizer calls it with kAdasum. Collective.
  void Agree(Communicator& ranks) {
    uint8_t mine = FirstOverflow().empty() ? 0 : 1;
    std::vector<uint8_t> all(static_cast<size_t>(ranks.size()));
    ranks.AllGather(Buffer(&mine, 1), Buffer(all.data(), all.size()));
    overflow_elsewhere_ = std::find(all.begin(), all.end(), uint8_t{1}) != all.end();
  }

  /// Calls the closure, if there is one, which scales its loss. Divides the gradients by the scale
  /// and lets the inner optimizer step, or skips the step. Returns the closure's loss, with the
  /// scale. kInvalidArgument: too many steps in a row have been skipped.
  Tensor step(LossClosure closure = nullptr) override {
    Tensor loss;
    if (closure) {
      at::AutoGradMode enable_grad(true);
      loss = closure();
    }
    const std::string found = FirstOverflow();
    const bool elsewhere = std::exchange(overflow_elsewhere_, false);
    const bool is_finite = found.empty() && !elsewhere;
    const double used = scale_.scale;
    detail::UpdateLossScale(scale_, options_, is_finite, [&] {
      return found.empty() ? std::string("a gradient of another rank")
                           : internal::Text("the gradient of ", found);
    });
    if (!is_finite) return loss;
    {
      ::torch::NoGradGuard no_grad;
      for (const auto& gradient : Gradients()) Values(gradient.first).mul_(1 / used);
    }
    groups_.ShareOptions(param_groups_, inner_->param_groups());
    inner_->step();
    return loss;
  }

  /// The inner optimizer.
  ::torch::optim::Optimizer& inner() { return *inner_; }

  /// Saves the inner optimizer and the scale. Local.
  void save(::torch::serialize::OutputArchive& archive) const override {
    inner_->save(archive);
    archive.write(
        kKey, ::torch::tensor(
                  {scale_.scale, static_cast<double>(scale_.good_steps),
                   static_cast<double>(scale_.skipped_steps),
                   static_cast<double>(scale_.skipped_in_a_row)},
                  at::kDouble));
  }
  /// Loads both. The scale stays if the archive has none. Local: all ranks load the same state.
  /// kInvalidArgument: the archive's scale is damaged.
  void load(::torch::serialize::InputArchive& archive) override {
    inner_->load(archive);
    Tensor numbers;
    if (!archive.try_read(kKey, numbers)) return;
    if (numbers.numel() != 4 || numbers.scalar_type() != at::kDouble)
      internal::Refuse(
          ErrorCode::kInvalidArgument, "LossScaleOptimizer: the archive's loss scale is ",
          numbers.scalar_type(), numbers.sizes(), "; expected Double[4]");
    const auto number = [&](int64_t i) { return numbers[i].item<double>(); };
    detail::CheckLossScale("the archive's loss scale", number(0));
    const auto count = [&](int64_t i) { return static_cast<uint64_t>(number(i)); };
    scale_ = {number(0), count(1), count(2), count(3)};
  }

 private:
  static constexpr const char* kKey = "dtrun_loss_scale";

  static const std::vector<::torch::optim::OptimizerParamGroup>& CheckedGroups(
      const ::torch::optim::Optimizer* inner) {
    const std::string who = "LossScaleOptimizer: ";
    if (inner == nullptr)
      internal::Refuse(ErrorCode::kInvalidArgument, who, "the inner optimizer is null");
    if (dynamic_cast<const ::torch::optim::LBFGS*>(inner) != nullptr)
      internal::Refuse(
          ErrorCode::kInvalidArgument, who,
          "LBFGS takes several gradients in one step; expected an optimizer with one gradient per "
          "step (SGD, Adam, AdamW, RMSprop, Adagrad)");
    if (dynamic_cast<const internal::StepsTogether*>(inner) != nullptr)
      internal::Refuse(
          ErrorCode::kInvalidArgument, who,
          "the inner optimizer is a DistributedOptimizer; expected the LossScaleOptimizer inside "
          "the DistributedOptimizer");
    const auto& groups = inner->param_groups();
    for (size_t g = 0; g < groups.size(); ++g)
      for (size_t k = 0; k < groups[g].params().size(); ++k)
        if (groups[g].params()[k].scalar_type() == at::kHalf)
          internal::Refuse(
              ErrorCode::kInvalidArgument, who, "parameter ", k, " of group ", g,
              " is f16; expected f32, f64 or bf16, because f16 has no room for gradients without "
              "the scale");
    return groups;
  }

  static std::unique_ptr<::torch::optim::OptimizerOptions> DefaultsOf(
      const ::torch::optim::Optimizer* inner) {
    return inner == nullptr ? nullptr : inner->defaults().clone();
  }

  // The numbers of a gradient, also of one by rows.
  static Tensor Values(const Tensor& gradient) {
    return gradient.is_sparse() ? gradient._values() : gradient;
  }

  // The gradients with their names, each once: "parameter 2 of group 0".
  std::vector<std::pair<Tensor, std::string>> Gradients() const {
    std::vector<std::pair<Tensor, std::string>> gradients;
    std::set<const at::TensorImpl*> seen;
    for (size_t g = 0; g < param_groups_.size(); ++g) {
      const std::vector<Tensor>& parameters = param_groups_[g].params();
      for (size_t k = 0; k < parameters.size(); ++k)
        if (parameters[k].requires_grad() && parameters[k].grad().defined() &&
            seen.insert(parameters[k].unsafeGetTensorImpl()).second)
          gradients.emplace_back(
              parameters[k].grad(), internal::Text("parameter ", k, " of group ", g));
    }
    return gradients;
  }

  // The first parameter with a gradient that is not finite; "" if there is none. On a GPU, all
  // checks are started before the first result is read.
  std::string FirstOverflow() const {
    ::torch::NoGradGuard no_grad;
    auto verdicts = Gradients();
    for (auto& verdict : verdicts) verdict.first = at::isfinite(Values(verdict.first)).all();
    for (const auto& verdict : verdicts)
      if (!verdict.first.template item<bool>()) return verdict.second;
    return "";
  }

  std::shared_ptr<::torch::optim::Optimizer> inner_;
  LossScaleOptions options_;
  internal::Groups groups_;
  LossScale scale_;
  bool overflow_elsewhere_ = false;  // in this step, on another rank
};

}  // namespace torch
}  // namespace dtrun

#endif
