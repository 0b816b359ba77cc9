#ifndef DTRUN_GPU_MEMORY_H_
#define DTRUN_GPU_MEMORY_H_

#include <cuda.h>

#include <cstdint>

#include "gpu/gpu_device.h"

namespace dtrun::gpu {

/// Memory of a device: zeroed, aligned to at least 256 bytes, freed with the object. Movable.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Throws Error kUnavailable, with the requested and the free bytes, if the device's memory or
  /// the limit of SetMemoryLimit has too little room.
  DeviceMemory(const Device& device, uint64_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept { *this = static_cast<DeviceMemory&&>(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  CUdeviceptr address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(address_);
  }
  explicit operator bool() const { return address_ != 0; }

 private:
  const Device* device_ = nullptr;
  CUdeviceptr address_ = 0;
  uint64_t bytes_ = 0;
};

/// Host memory that devices read and write directly: zeroed, freed with the object. Movable.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// Throws Error kUnavailable.
  PinnedMemory(const Device& device, uint64_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept { *this = static_cast<PinnedMemory&&>(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  const Device* device_ = nullptr;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

/// Limits the bytes that this process may take of each device; 0: no limit. The limit applies to
/// the memory of this library, from the next allocation on. Thread-safe.
void SetMemoryLimit(uint64_t bytes);
uint64_t MemoryLimit();
/// The bytes that this process has taken of device `index`. Thread-safe.
uint64_t MemoryTaken(int index);

/// Counts memory that is taken in another way, such as exported memory. Throws as DeviceMemory does
/// if the memory does not fit.
void CountMemory(const Device& device, uint64_t bytes);
void UncountMemory(const Device& device, uint64_t bytes);
[[noreturn]] void ThrowOutOfMemory(const Device& device, uint64_t bytes);

}  // namespace dtrun::gpu

#endif
