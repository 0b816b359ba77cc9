#ifndef DTRUN_GPU_GPU_DEVICE_H_
#define DTRUN_GPU_GPU_DEVICE_H_

#include <cuda.h>

#include <cstdint>
#include <string>

namespace dtrun::gpu {

/// GPUs that this process may use (CUDA_VISIBLE_DEVICES narrows them down), at least one. Throws
/// Error kUnavailable, with the reason, where there are none.
int DeviceCount();

struct Description {
  CUdevice handle = 0;
  std::string name;    ///< "NVIDIA H200"
  std::string bus_id;  ///< "0000:1B:00.0": tells two processes whether they use the same GPU
  uint64_t memory_bytes = 0;
};

/// Of GPU `index`, which need not be used for that: no context is made. Throws Error
/// kInvalidArgument for an index that there is not, kUnavailable without GPUs, kSystem when the
/// driver refuses. Thread-safe.
Description Describe(int index);

/// One GPU and its primary context, which CUDA's runtime API uses as well: memory and streams of
/// this library and of a program's own code on the same GPU are interchangeable. Made by the first
/// who asks and kept until the process ends. Thread-safe.
class Device {
 public:
  /// Throws Error kInvalidArgument for an index that there is not, kUnavailable without GPUs,
  /// kSystem when the driver refuses.
  static const Device& Get(int index);

  int index() const { return index_; }
  CUdevice handle() const { return description_.handle; }
  CUcontext context() const { return context_; }
  const std::string& name() const { return description_.name; }
  const std::string& bus_id() const { return description_.bus_id; }
  int multiprocessors() const { return multiprocessors_; }
  int Attribute(CUdevice_attribute attribute) const;

  struct MemoryInfo {
    uint64_t free = 0, total = 0;
  };
  /// Bytes, of all processes together.
  MemoryInfo Memory() const;
  /// Waits for all work of this process on the GPU.
  void Synchronize() const;

 private:
  explicit Device(int index);

  int index_;
  Description description_;
  CUcontext context_ = nullptr;
  int multiprocessors_ = 0;
};

/// While it lives, driver calls of this thread go to the device.
class DeviceScope {
 public:
  explicit DeviceScope(const Device& device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
};

}  // namespace dtrun::gpu

#endif
