#ifndef DTRUN_TORCH_REGISTRATION_H_
#define DTRUN_TORCH_REGISTRATION_H_

#include <dtrun/detail/torch_tensors.h>
#include <dtrun/device_registration.h>

#include <optional>
#include <string>

namespace dtrun {
namespace torch {

/// Registers a tensor on a GPU: collectives of a communicator reach it without a copy while this
/// object lives. The object keeps the tensor alive, so LibTorch does not free its memory meanwhile.
/// Use it for large tensors that are reduced repeatedly. The gradients of a DistributedOptimizer
/// need no registration. A CPU tensor is not changed. See dtrun/device_registration.h.
///
///   dtrun::torch::RegisteredTensor running(world, statistics);
///   for (...) dtrun::torch::AllReduce(world, statistics);
///
/// All ranks destroy their objects between the same two calls. If LibTorch does not allocate with
/// cudaMalloc (expandable segments, or the backend cudaMallocAsync), obstacle() says so, and
/// collectives treat the tensor as unregistered.
class RegisteredTensor {
 public:
  /// Collective. All ranks pass tensors of the same device type. Throws kInvalidArgument if the
  /// tensor is not contiguous, because collectives would use a copy of it.
  RegisteredTensor(Communicator& communicator, const Tensor& tensor) : tensor_(tensor) {
    const at::Device device = internal::CheckedDevice("register: the tensor", tensor);
    if (tensor.layout() != at::kStrided || !tensor.is_contiguous())
      internal::Refuse(
          ErrorCode::kInvalidArgument,
          "register: the tensor is not contiguous; expected a contiguous tensor, because "
          "collectives copy other tensors");
    if (device.is_cpu()) return;
    memory_.emplace(communicator, device.index(), tensor.data_ptr(), tensor.nbytes());
  }

  /// The tensor that was passed to the constructor.
  const Tensor& tensor() const { return tensor_; }
  /// The reason why the tensor is treated as unregistered. "" if there is none.
  std::string obstacle() const { return memory_ ? memory_->obstacle() : ""; }

 private:
  Tensor tensor_;
  std::optional<RegisteredMemory> memory_;
};

}  // namespace torch
}  // namespace dtrun

#endif
