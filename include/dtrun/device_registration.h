#ifndef DTRUN_DEVICE_REGISTRATION_H_
#define DTRUN_DEVICE_REGISTRATION_H_

#include <dtrun/c_device_registration.h>
#include <dtrun/communicator.h>
#include <dtrun/error.h>

#include <cstdint>
#include <memory>
#include <string>

namespace dtrun {

/// Memory of a GPU that the program has allocated by itself (cudaMalloc), and that collectives of a
/// communicator reach without a copy while this object lives, as they do memory of
/// AllocateOnDevice, where the backend makes a difference. Worth it for what collectives of more
/// than 256 KiB use again and again. One thread at a time, as the communicator.
///
///   dtrun::RegisteredMemory registered(world, 0, gradients, bytes);
///   for (...) world.AllReduce(buffer);  // of `gradients`, or of a part of them
///
/// All ranks destroy theirs between the same two calls, before the communicator, when nothing that
/// uses it is under way on any rank. The memory is freed, and graphs with it are destroyed, when
/// all ranks have.
class RegisteredMemory {
 public:
  /// Collective. `bytes` may differ between ranks, and be 0. Errors, on all ranks:
  /// kInvalidArgument when a rank's memory is not of this GPU, or of more than one allocation;
  /// kUnavailable as for AllocateOnDevice, and for more than 1022 pieces at once.
  RegisteredMemory(Communicator& communicator, int device, void* data, uint64_t bytes) {
    dtrun_memory* memory = nullptr;
    detail::Check(
        dtrun_communicator_register_on_device(communicator.handle(), device, data, bytes, &memory));
    handle_.reset(memory);
  }

  void* data() const { return dtrun_memory_data(handle_.get()); }
  uint64_t bytes() const { return dtrun_memory_bytes(handle_.get()); }
  /// Why collectives take it as any other memory after all: the first rank that has a reason, and
  /// its reason, the same on all ranks; "" when there is none.
  std::string obstacle() const { return dtrun_memory_obstacle(handle_.get()); }

 private:
  std::unique_ptr<dtrun_memory, detail::Destroyer<dtrun_memory, dtrun_memory_destroy>> handle_;
};

}  // namespace dtrun

#endif
