#ifndef DTRUN_RUNTIME_DEVICE_DEVICE_GRADIENTS_H_
#define DTRUN_RUNTIME_DEVICE_DEVICE_GRADIENTS_H_

#include <cstdint>
#include <memory>
#include <string>

namespace dtrun::runtime {

/// The streams of one trainer's gradients on a GPU. They are copied and cleared in the trainer's
/// stream and reduced in a second stream, so that a bucket is reduced while the backward pass goes
/// on. The host waits only in Synchronize. Throws Error kSystem if the driver fails.
class DeviceGradients {
 public:
  virtual ~DeviceGradients() = default;

  /// The stream of the trainer, and the stream of the reductions.
  virtual void* trainer_stream() const = 0;
  virtual void* reduction_stream() const = 0;

  /// Reductions that start from now on run after the trainer's work so far.
  virtual void BeginReduction() = 0;
  /// Work that the trainer enqueues from now on runs after all reductions so far.
  virtual void EndReductions() = 0;
  /// Waits for all reductions, and for the trainer's work so far, which may read their results.
  virtual void Synchronize() = 0;
};

/// Built twice: from device_gradients.cc if the CUDA toolkit is found, otherwise from
/// no_device_gradients.cc. Throws Error kUnavailable if there are no GPUs.
std::unique_ptr<DeviceGradients> MakeDeviceGradients(int device, void* trainer_stream);

/// The number of GPUs that this process can use, at least 1. Throws Error kUnavailable, with the
/// reason, if there are none. Built twice, like MakeDeviceGradients.
int CudaDeviceCount();

struct CudaDevice {
  std::string name, bus_id;
  uint64_t memory_bytes = 0;
};

/// Describes a GPU without using any of its resources. The result stays valid. Throws the errors of
/// CudaDeviceCount, and kInvalidArgument if the GPU does not exist. Any thread.
const CudaDevice& DescribeCudaDevice(int index);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_DEVICE_DEVICE_GRADIENTS_H_
