#ifndef DTRUN_RUNTIME_DEVICE_DEVICE_GRADIENTS_H_
#define DTRUN_RUNTIME_DEVICE_DEVICE_GRADIENTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "dtrun/types.h"

namespace dtrun::runtime {

/// Gradients of one trainer on a GPU, which are copied and cleared in the trainer's stream and
/// reduced in another one, so that a bucket is reduced while the backward pass goes on. The host
/// waits for nothing but in the destructor. Throws Error kSystem when the driver fails.
class DeviceGradients {
 public:
  virtual ~DeviceGradients() = default;

  /// Of the trainer, and of the reductions.
  virtual void* trainer_stream() const = 0;
  virtual void* reduction_stream() const = 0;

  /// In the trainer's stream.
  virtual void Copy(const Buffer& to, const void* from) = 0;
  virtual void Clear(const Buffer& buffer) = 0;
  /// What the trainer has enqueued so far comes before what is reduced from now on.
  virtual void BeginReduction() = 0;
  /// What has been reduced so far comes before what the trainer enqueues from now on.
  virtual void EndReductions() = 0;
  /// Waits for all reductions.
  virtual void Synchronize() = 0;
};

/// Built twice: device_gradients.cc where the CUDA toolkit is found, no_device_gradients.cc
/// elsewhere. Throws Error kUnavailable where there are no GPUs.
std::unique_ptr<DeviceGradients> MakeDeviceGradients(int device, void* trainer_stream);

/// Fills a buffer on a GPU with zeros, in its stream. Errors as above.
void ClearOnDevice(const Buffer& buffer);

/// GPUs that this process can use, at least one. Throws Error kUnavailable with the reason where
/// there are none. Built twice, as above.
int CudaDeviceCount();

struct CudaDevice {
  std::string name, bus_id;
  uint64_t memory_bytes = 0;
};

/// Takes nothing of the GPU. The result stays. Throws as CudaDeviceCount, kInvalidArgument for a
/// GPU that there is not. Any thread.
const CudaDevice& DescribeCudaDevice(int index);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_DEVICE_DEVICE_GRADIENTS_H_
