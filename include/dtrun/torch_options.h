#ifndef DTRUN_TORCH_OPTIONS_H_
#define DTRUN_TORCH_OPTIONS_H_

#include <torch/torch.h>

#include <memory>

// The options of parameter groups; not for trainers.

namespace dtrun {
namespace torch {
namespace internal {

/// The options of a group as they last were in both optimizers, and what may have changed since.
class SharedOptions {
 public:
  using Options = ::torch::optim::OptimizerOptions;

  explicit SharedOptions(const Options& options) : options_(options.clone()) {
    comparable_ = AreBothKnown(options, options, &whole_);
    try {
      comparable_ = comparable_ || options.get_lr() >= 0;
    } catch (const c10::Error&) {  // a type of the user's own, without a learning rate
    }
  }

  /// Of types that are not LibTorch's own, only the learning rate can be compared, or nothing.
  bool AreSame(const Options& a, const Options& b) const {
    bool same = !comparable_;
    if (!comparable_ || AreBothKnown(a, b, &same)) return same;
    return a.get_lr() == b.get_lr();
  }
  bool HasChanged(const Options& options) const { return !AreSame(options, *options_); }
  /// Whether HasChanged sees every change.
  bool whole() const { return whole_; }
  void Take(const Options& options) { options_ = options.clone(); }

 private:
  template <typename T>
  static bool AreBoth(const Options& a, const Options& b, bool* same) {
    const auto* left = dynamic_cast<const T*>(&a);
    const auto* right = dynamic_cast<const T*>(&b);
    if (left == nullptr || right == nullptr) return false;
    *same = *left == *right;
    return true;
  }

  static bool AreBothKnown(const Options& a, const Options& b, bool* same) {
    return AreBoth<::torch::optim::SGDOptions>(a, b, same) ||
           AreBoth<::torch::optim::AdamOptions>(a, b, same) ||
           AreBoth<::torch::optim::AdamWOptions>(a, b, same) ||
           AreBoth<::torch::optim::RMSpropOptions>(a, b, same) ||
           AreBoth<::torch::optim::AdagradOptions>(a, b, same);
  }

  std::unique_ptr<Options> options_;
  bool whole_ = false;
  bool comparable_ = false;
};

}  // namespace internal
}  // namespace torch
}  // namespace dtrun

#endif
