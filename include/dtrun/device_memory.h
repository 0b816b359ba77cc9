#ifndef DTRUN_DEVICE_MEMORY_H_
#define DTRUN_DEVICE_MEMORY_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/c_device.h>
#include <dtrun/error.h>

#include <cstdint>
#include <string>

namespace dtrun {

/// Collective: zeroed memory on GPU `device` of this rank, aligned to 256 bytes, which collectives
/// of `communicator` reach without a copy where their backend can. `bytes` may differ between
/// ranks. Freed with the object, before the communicator, when nothing that uses it is under way on
/// any rank. Errors, on all ranks: kUnavailable, with the reason.
///
///   dtrun::Memory memory = dtrun::AllocateOnDevice(world, 0, bytes);
///   dtrun::Buffer buffer(memory.data(), count, dtrun::DType::kF32);
///   buffer.device = 0;
///   buffer.stream = stream;
///   world.AllReduce(buffer);  // enqueued: what comes after it in the stream sees the sum
inline Memory AllocateOnDevice(Communicator& communicator, int device, uint64_t bytes) {
  dtrun_memory* memory = nullptr;
  detail::Check(
      dtrun_communicator_allocate_on_device(communicator.handle(), device, bytes, &memory));
  return Memory(memory);
}

/// Collective until it has been asked once: what moves the data of GPUs, "cuda_ipc", "nccl",
/// "hierarchical" or "host_staged". Errors as above.
inline std::string DeviceBackend(Communicator& communicator, int device) {
  const char* backend = nullptr;
  detail::Check(dtrun_communicator_device_backend(communicator.handle(), device, &backend));
  return backend;
}

/// Throws the error of a collective on a GPU that has been enqueued, as far as it is known: of all
/// of them once the caller has waited for their streams.
inline void CheckDeviceCollectives(Communicator& communicator) {
  detail::Check(dtrun_communicator_check_device(communicator.handle()));
}

}  // namespace dtrun

#endif
