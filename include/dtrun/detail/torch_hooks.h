#ifndef DTRUN_DETAIL_TORCH_HOOKS_H_
#define DTRUN_DETAIL_TORCH_HOOKS_H_

#include <dtrun/detail/torch_tensors.h>
#include <sys/mman.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// The autograd hooks of DistributedOptimizer. Internal.

namespace dtrun {
namespace torch {
namespace internal {

/// Runs a function after a gradient has been accumulated.
class AfterAccumulation : public ::torch::autograd::FunctionPostHook {
 public:
  explicit AfterAccumulation(std::function<void()> run) : run_(std::move(run)) {}
  ::torch::autograd::variable_list operator()(
      const ::torch::autograd::variable_list& outputs,
      const ::torch::autograd::variable_list&) override {
    run_();
    return outputs;
  }

 private:
  std::function<void()> run_;
};

/// Runs a function before a gradient is accumulated.
class BeforeAccumulation : public ::torch::autograd::FunctionPreHook {
 public:
  explicit BeforeAccumulation(std::function<void()> run) : run_(std::move(run)) {}
  ::torch::autograd::variable_list operator()(
      const ::torch::autograd::variable_list& gradients) override {
    if (!gradients.empty() && gradients[0].defined()) run_();
    return gradients;
  }

 private:
  std::function<void()> run_;
};

/// Untouched zeros: memory that the system fills with zeros at the first touch. They zero a
/// gradient at no cost.
class Blank {
 public:
  explicit Blank(const Tensor& like)
      : bytes_(static_cast<size_t>(like.numel()) * like.element_size()) {
    if (bytes_ == 0) return;
    void* data = mmap(
        nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
        0);
    if (data == MAP_FAILED) return;
    memory_ =
        std::shared_ptr<void>(data, [bytes = bytes_](void* mapped) { munmap(mapped, bytes); });
    const auto keep = [memory = memory_](void*) {};
    const auto options = ::torch::TensorOptions().dtype(like.scalar_type());
    zeros_ = ::torch::from_blob(data, like.sizes(), like.strides(), keep, options);
  }

  /// Returns the zeros. Undefined if there is no memory for them.
  Tensor Zeros() {
    if (memory_ != nullptr && madvise(memory_.get(), bytes_, MADV_DONTNEED) != 0) return Tensor();
    return zeros_;
  }
  /// Returns true if `gradient` is these zeros and no page of them has been touched.
  bool Is(const Tensor& gradient) const {
    if (memory_ == nullptr || !gradient.is_same(zeros_)) return false;
    std::vector<unsigned char> pages((bytes_ + kPage - 1) / kPage);
    if (mincore(memory_.get(), bytes_, pages.data()) != 0) return false;
    for (const unsigned char page : pages) {
      if ((page & 1) != 0) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kPage = 4096;  // the smallest page of any system

  size_t bytes_;
  std::shared_ptr<void> memory_;
  Tensor zeros_;
};

// The options of parameter groups. Internal.

/// The options of a group as both optimizers last had them. They detect later changes.
class SharedOptions {
 public:
  using Options = ::torch::optim::OptimizerOptions;

  explicit SharedOptions(const Options& options) : options_(options.clone()) {
    comparable_ = AreBothKnown(options, options, &whole_);
    try {
      comparable_ = comparable_ || options.get_lr() >= 0;
    } catch (const c10::Error&) {  // a user-defined type without a learning rate
    }
  }

  /// For types that are not LibTorch's, only the learning rate is compared, or nothing.
  bool AreSame(const Options& a, const Options& b) const {
    bool same = !comparable_;
    if (!comparable_ || AreBothKnown(a, b, &same)) return same;
    return a.get_lr() == b.get_lr();
  }
  bool HasChanged(const Options& options) const { return !AreSame(options, *options_); }
  /// Returns true if HasChanged detects every change.
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

// The groups of a wrapped optimizer. Internal.

/// The names of parameters, for errors and for the comparison between ranks.
using Names = std::map<const at::TensorImpl*, std::string>;

inline Names NamesOf(const ::torch::nn::Module& module) {
  Names names;
  for (const auto& item : module.named_parameters())
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  return names;
}

/// Opens what an optimizer has saved, on the device of the parameters of `optimizer`.
inline void OpenState(
    const ::torch::optim::Optimizer& optimizer, const std::string& bytes,
    ::torch::serialize::InputArchive& archive) {
  ::torch::Device device = at::kCPU;
  for (const auto& group : optimizer.param_groups())
    if (!group.params().empty()) device = group.params()[0].device();
  archive.load_from(bytes.data(), bytes.size(), device);
}

/// The base of optimizers with a collective step.
struct StepsTogether {
  virtual ~StepsTogether() = default;
};

/// The parameter groups at construction, and the last options of the wrapper and of the inner
/// optimizer. LibTorch copies groups by value, and a user may change the groups of either
/// optimizer.
class Groups {
 public:
  using Group = ::torch::optim::OptimizerParamGroup;

  explicit Groups(Names names) : names_(std::move(names)) {}

  /// Adds the next group.
  void Add(const Group& group) {
    members_.emplace_back();
    for (const Tensor& parameter : group.params())
      members_.back().push_back({parameter.unsafeGetTensorImpl(), parameter.requires_grad()});
    shared_.emplace_back(group.options());
  }

  std::string NameOf(const Tensor& parameter, size_t group, size_t k) const {
    const auto found = names_.find(parameter.unsafeGetTensorImpl());
    if (found != names_.end()) return found->second;
    return Text("group ", group, ", parameter ", k);
  }

  /// Throws kInvalidArgument unless `groups` have the same parameters as at construction.
  void Check(const std::vector<Group>& groups) const {
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::vector<Tensor>& parameters = groups[g].params();
      for (size_t k = 0; k < parameters.size(); ++k) CheckMember(parameters[k], g, k);
      if (g >= members_.size() || parameters.size() != members_[g].size()) {
        Refuse(
            ErrorCode::kInvalidArgument, "step(): group ", g, " has ", parameters.size(),
            " parameters; expected ", g < members_.size() ? members_[g].size() : 0,
            ", as when it was wrapped");
      }
    }
    if (groups.size() != members_.size()) {
      Refuse(
          ErrorCode::kInvalidArgument, "step(): found ", groups.size(),
          " groups of parameters; expected ", members_.size(), ", as when they were wrapped");
    }
  }

  /// Copies changed options of the wrapper's groups to the inner optimizer, and the reverse. Throws
  /// kInvalidArgument if both were changed differently.
  void ShareOptions(std::vector<Group>& wrappers, std::vector<Group>& inners) {
    for (size_t g = 0; g < wrappers.size(); ++g) {
      SharedOptions& shared = shared_[g];
      Group& wrapper = wrappers[g];
      Group& inner = inners[g];
      const bool wrapper_changed = shared.HasChanged(wrapper.options());
      const bool inner_changed = shared.HasChanged(inner.options());
      if (!wrapper_changed && !inner_changed && shared.whole()) continue;
      if (wrapper_changed && inner_changed && !shared.AreSame(wrapper.options(), inner.options())) {
        Refuse(
            ErrorCode::kInvalidArgument, "step(): the options of group ", g,
            " were changed in an optimizer and otherwise in the optimizer inside it; "
            "change them, or attach the scheduler, in one place");
      }
      if (inner_changed) {
        wrapper.set_options(inner.options().clone());
      } else {
        inner.set_options(wrapper.options().clone());
      }
      shared.Take(wrapper.options());
    }
  }

 private:
  struct Member {
    const at::TensorImpl* tensor;
    bool reduced;
  };

  void CheckMember(const Tensor& parameter, size_t g, size_t k) const {
    const bool known = g < members_.size() && k < members_[g].size() &&
                       members_[g][k].tensor == parameter.unsafeGetTensorImpl();
    if (!known) {
      Refuse(
          ErrorCode::kInvalidArgument, "step(): parameter '", NameOf(parameter, g, k), "' ",
          parameter.sizes(),
          " was added after the optimizer was wrapped, so that the ranks do not "
          "reduce it; wrap the optimizer when all parameters are in it");
    }
    if (!members_[g][k].reduced && parameter.requires_grad()) {
      Refuse(
          ErrorCode::kInvalidArgument, "step(): parameter '", NameOf(parameter, g, k),
          "' was frozen when the optimizer was wrapped and requires a gradient now, so that the "
          "ranks do not reduce it; wrap the optimizer again");
    }
  }

  Names names_;
  std::vector<std::vector<Member>> members_;  // by group
  std::vector<SharedOptions> shared_;         // by group
};

}  // namespace internal
}  // namespace torch
}  // namespace dtrun

#endif  // DTRUN_DETAIL_TORCH_HOOKS_H_
