#ifndef DTRUN_TORCH_REGISTRATION_H_
#define DTRUN_TORCH_REGISTRATION_H_

#include <dtrun/detail/torch_tensors.h>
#include <dtrun/device_registration.h>

#include <optional>
#include <string>

namespace dtrun {
namespace torch {

/// A tensor on a GPU that collectives of a communicator reach without a copy while this object
/// lives, and that lives as long: its memory is not given back to the GPU meanwhile. For large
/// tensors that are reduced again and again; the gradients of a DistributedOptimizer lie in such
/// memory anyway. A tensor of the CPU is as it was. See dtrun/device_registration.h.
///
///   dtrun::torch::RegisteredTensor running(world, statistics);
///   for (...) dtrun::torch::AllReduce(world, statistics);
///
/// All ranks destroy theirs between the same two calls. Where LibTorch takes memory otherwise than
/// with cudaMalloc (its expandable segments, its backend cudaMallocAsync), obstacle() says so, and
/// collectives go on as without.
class RegisteredTensor {
 public:
  /// Collective; every rank brings a tensor of the same device type. Throws kInvalidArgument for
  /// one that is not contiguous: collectives would use a copy of it.
  RegisteredTensor(Communicator& communicator, const Tensor& tensor) : tensor_(tensor) {
    const at::Device device = internal::CheckedDevice("register: the tensor", tensor);
    if (tensor.layout() != at::kStrided || !tensor.is_contiguous())
      internal::Refuse(
          ErrorCode::kInvalidArgument,
          "register: the tensor is not contiguous, of which "
          "collectives make a copy; expected contiguous()");
    if (device.is_cpu()) return;
    memory_.emplace(communicator, device.index(), tensor.data_ptr(), tensor.nbytes());
  }

  const Tensor& tensor() const { return tensor_; }
  /// "" when there is none.
  std::string obstacle() const { return memory_ ? memory_->obstacle() : ""; }

 private:
  Tensor tensor_;
  std::optional<RegisteredMemory> memory_;
};

}  // namespace torch
}  // namespace dtrun

#endif
