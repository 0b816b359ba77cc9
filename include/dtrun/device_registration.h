#ifndef DTRUN_DEVICE_REGISTRATION_H_
#define DTRUN_DEVICE_REGISTRATION_H_

#include <dtrun/c_device_registration.h>
#include <dtrun/communicator.h>
#include <dtrun/error.h>

#include <cstdint>
#include <memory>
#include <string>

namespace dtrun {

/// Registers GPU memory that the program has allocated itself (cudaMalloc). While this object
/// lives, collectives of the communicator reach the memory without a copy, as they reach memory of
/// AllocateOnDevice. Some backends make no difference. Registration pays off for memory that
/// collectives of more than 256 KiB use repeatedly. One thread at a time, as for the communicator.
///
///   dtrun::RegisteredMemory registered(world, 0, gradients, bytes);
///   for (...) world.AllReduce(buffer);  // of `gradients`, or of a part of them
///
/// All ranks destroy their objects between the same two calls, before the communicator, when no
/// operation that uses the memory is under way on any rank. After all ranks have done so, the
/// program may free the memory and destroy graphs that use it.
class RegisteredMemory {
 public:
  /// Collective. `bytes` may differ between ranks, and may be 0. Errors, on all ranks:
  /// kInvalidArgument (a rank's memory is not on this GPU, or not in one allocation), kUnavailable
  /// (as for AllocateOnDevice, or more than 1022 registrations at once).
  RegisteredMemory(Communicator& communicator, int device, void* data, uint64_t bytes) {
    dtrun_memory* memory = nullptr;
    detail::Check(
        dtrun_communicator_register_on_device(communicator.handle(), device, data, bytes, &memory));
    handle_.reset(memory);
  }

  /// The address of the registered memory.
  void* data() const { return dtrun_memory_data(handle_.get()); }
  /// The size of the registered memory on this rank, in bytes.
  uint64_t bytes() const { return dtrun_memory_bytes(handle_.get()); }
  /// The reason why collectives treat this memory as unregistered: the reason of the first rank
  /// that has one, the same on all ranks. "" if there is none.
  std::string obstacle() const { return dtrun_memory_obstacle(handle_.get()); }

 private:
  std::unique_ptr<dtrun_memory, detail::Destroyer<dtrun_memory, dtrun_memory_destroy>> handle_;
};

}  // namespace dtrun

#endif
