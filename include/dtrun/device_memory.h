#ifndef DTRUN_DEVICE_MEMORY_H_
#define DTRUN_DEVICE_MEMORY_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/c_device.h>
#include <dtrun/error.h>

#include <cstdint>
#include <memory>
#include <string>

namespace dtrun {

/// Allocates zeroed memory on GPU `device` of this rank, aligned to 256 bytes. Collective. `bytes`
/// may differ between ranks. Destroy the object before the communicator, when no operation that
/// uses the memory is under way on any rank. Errors, on all ranks: kUnavailable, with the reason.
///
///   dtrun::Memory memory = dtrun::AllocateOnDevice(world, 0, bytes);
///   dtrun::Buffer buffer(memory.data(), count, dtrun::DType::kF32);
///   buffer.device = 0;
///   buffer.stream = stream;
///   world.AllReduce(buffer);  // enqueued: later work in the stream sees the sum
inline Memory AllocateOnDevice(Communicator& communicator, int device, uint64_t bytes) {
  dtrun_memory* memory = nullptr;
  detail::Check(
      dtrun_communicator_allocate_on_device(communicator.handle(), device, bytes, &memory));
  return Memory(memory);
}

/// The backend that moves data between GPUs: "cuda_ipc", "nccl", "hierarchical" or "host_staged".
/// The first call is collective. Errors as in AllocateOnDevice.
inline std::string DeviceBackend(Communicator& communicator, int device) {
  const char* backend = nullptr;
  detail::Check(dtrun_communicator_device_backend(communicator.handle(), device, &backend));
  return backend;
}

/// Throws the error of any enqueued collective on a GPU, as far as this rank knows. After the
/// caller has waited for its streams, this rank knows all errors.
inline void CheckDeviceCollectives(Communicator& communicator) {
  detail::Check(dtrun_communicator_check_device(communicator.handle()));
}

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
