#ifndef DTRUN_TORCH_REGISTRATION_H_
#define DTRUN_TORCH_REGISTRATION_H_

#include <dtrun/detail/torch_tensors.h>
#include <dtrun/device_registration.h>

#include <optional>
#include <string>

namespace dtrun {
namespace torch {

/// A tensor on a GPU that collectives use repeatedly. Registration has no effect since dtrun 0.2:
/// collectives treat all memory of a GPU alike. The class stays for programs that use it. The
/// object keeps the tensor alive.
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
  /// Always "".
  std::string obstacle() const { return memory_ ? memory_->obstacle() : ""; }

 private:
  Tensor tensor_;
  std::optional<RegisteredMemory> memory_;
};

}  // namespace torch
}  // namespace dtrun

#endif
