#ifndef DTRUN_DETAIL_TORCH_DELTA_H_
#define DTRUN_DETAIL_TORCH_DELTA_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/delta_reduction.h>
#include <dtrun/detail/torch_tensors.h>
#include <dtrun/named_queue.h>
#include <dtrun/types.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Adasum in a DistributedOptimizer. Internal.

namespace dtrun {
namespace torch {
namespace internal {

/// The same as dtrun::detail::DeltaReduction for LibTorch parameters of any float type. The change
/// of a step is computed and added in that type. The ranks combine the changes in host memory.
class DeltaReduction {
 public:
  /// Collective. Throws kMismatch, with the first parameter that differs between the ranks.
  DeltaReduction(Communicator& communicator, const NamedTensors& parameters)
      : queue_(Agreed(communicator, parameters)) {
    for (const auto& parameter : parameters) {
      const Tensor value = parameter.second.detach();  // the same memory
      values_.push_back(value);
      before_.push_back(::torch::empty_like(value));
      deltas_.push_back(::torch::empty(value.sizes(), value.options().device(at::kCPU)));
      const Tensor& delta = deltas_.back();
      const Buffer buffer(
          delta.data_ptr(), static_cast<uint64_t>(delta.numel()),
          CheckedDType(parameter.first, delta));
      tensors_.push_back(
          {parameter.first, buffer, Shape(delta.sizes().begin(), delta.sizes().end())});
    }
    options_.op = ReduceOp::kAdasum;
  }

  /// Called before the step: saves the values.
  void Begin() {
    ::torch::NoGradGuard no_grad;
    for (size_t i = 0; i < values_.size(); ++i) before_[i].copy_(values_[i]);
  }

  /// Called after the step: sets the values to the combined result. Collective.
  void End() {
    if (values_.empty()) return;
    ::torch::NoGradGuard no_grad;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].is_cpu())
        at::sub_out(deltas_[i], values_[i], before_[i]);
      else
        deltas_[i].copy_(values_[i] - before_[i]);
    }
    queue_.AllReduce(tensors_, options_).Wait();
    for (size_t i = 0; i < values_.size(); ++i)
      at::add_out(values_[i], before_[i], deltas_[i].to(values_[i].device()));
  }

 private:
  static Communicator& Agreed(Communicator& communicator, const NamedTensors& parameters) {
    detail::CheckAdasumRanks(communicator.size());
    std::vector<std::string> lines = {"adasum"};
    for (const auto& parameter : parameters)
      lines.push_back(Text(
          "'", parameter.first, "' ", parameter.second.scalar_type(), parameter.second.sizes()));
    AgreeOn(communicator, "DistributedOptimizer", lines);
    return communicator;
  }

  std::vector<Tensor> values_, before_, deltas_;
  NamedQueue::Tensors tensors_;
  NamedOptions options_;
  NamedQueue queue_;
};

}  // namespace internal
}  // namespace torch
}  // namespace dtrun

#endif
