#ifndef DTRUN_GPU_GPU_DEVICE_H_
#define DTRUN_GPU_GPU_DEVICE_H_

#include <cuda.h>

#include <cstdint>
#include <string>

namespace dtrun::gpu {

/// The number of GPUs that this process may use, at least one. CUDA_VISIBLE_DEVICES limits them.
/// Throws Error kUnavailable, with the reason, if there are none.
int DeviceCount();

struct Description {
  CUdevice handle = 0;
  std::string name;    ///< "NVIDIA H200"
  std::string bus_id;  ///< "0000:1B:00.0": the same in all processes of the host
  uint64_t memory_bytes = 0;
};

/// Describes GPU `index` without making a context on it. Throws Error kInvalidArgument if there is
/// no such GPU, kUnavailable if there are no GPUs, kSystem if the driver refuses. Thread-safe.
Description Describe(int index);

/// One GPU and its primary context. CUDA's runtime API uses the same context, so memory and streams
/// of this library and of a program's own code on a GPU are interchangeable. The first Get of a GPU
/// makes the object, which stays until the process ends. Thread-safe.
class Device {
 public:
  /// Throws Error kInvalidArgument if there is no such GPU, kUnavailable if there are no GPUs,
  /// kSystem if the driver refuses.
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
  /// Bytes of the GPU's memory, for all processes together.
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

/// Directs this thread's driver calls to the device, while the object lives.
class DeviceScope {
 public:
  explicit DeviceScope(const Device& device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
};

}  // namespace dtrun::gpu

#endif
