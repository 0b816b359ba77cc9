#ifndef DTRUN_TORCH_GROUPS_H_
#define DTRUN_TORCH_GROUPS_H_

#include <dtrun/torch_options.h>
#include <dtrun/torch_tensors.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

// The groups of a wrapped optimizer; not for trainers.

namespace dtrun {
namespace torch {
namespace internal {

/// What stands for a parameter in errors, and what the ranks compare.
using Names = std::map<const at::TensorImpl*, std::string>;

inline Names NamesOf(const ::torch::nn::Module& module) {
  Names names;
  for (const auto& item : module.named_parameters())
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  return names;
}

/// The groups of parameters as they were when the optimizer was wrapped, and their options as they
/// last were in the wrapper and in the optimizer inside it. LibTorch copies groups by value, and
/// whoever has an optimizer may change them.
class Groups {
 public:
  using Group = ::torch::optim::OptimizerParamGroup;

  explicit Groups(Names names) : names_(std::move(names)) {}

  /// The next group.
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

  /// Throws kInvalidArgument unless `groups` have the parameters that were wrapped.
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

  /// Options that were changed in the wrapper's groups reach those of the optimizer inside it, and
  /// the other way round. Throws kInvalidArgument if they were changed differently in both.
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
            " were changed in the DistributedOptimizer and otherwise in the optimizer inside it; "
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

#endif
