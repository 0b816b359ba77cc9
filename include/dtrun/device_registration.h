#ifndef DTRUN_DEVICE_REGISTRATION_H_
#define DTRUN_DEVICE_REGISTRATION_H_

#include <dtrun/c_device_registration.h>
#include <dtrun/communicator.h>
#include <dtrun/error.h>

#include <cstdint>
#include <memory>
#include <string>

namespace dtrun {

/// GPU memory that the program has allocated itself (cudaMalloc). Registration has no effect since
/// dtrun 0.2: collectives treat all memory of a GPU alike. The class stays for programs that use
/// it. Destroy the object before the communicator. One thread at a time, as for the communicator.
class RegisteredMemory {
 public:
  /// Collective. `bytes` may differ between ranks, and may be 0. Errors as for AllocateOnDevice.
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
  /// Always "".
  std::string obstacle() const { return dtrun_memory_obstacle(handle_.get()); }

 private:
  std::unique_ptr<dtrun_memory, detail::Destroyer<dtrun_memory, dtrun_memory_destroy>> handle_;
};

}  // namespace dtrun

#endif
