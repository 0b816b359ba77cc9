#ifndef DTRUN_GPU_KERNELS_H_
#define DTRUN_GPU_KERNELS_H_

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "gpu/gpu_device.h"

namespace dtrun::gpu {

/// How many blocks of how many threads, and the bytes of shared memory that each block has besides
/// its static ones.
struct Shape {
  uint32_t blocks = 1;
  uint32_t threads = 256;
  uint32_t shared_bytes = 0;
  uint32_t blocks_y = 1;
};

/// The kernels of one image (what the rule cuda_kernels makes of .cu files), loaded on each device
/// that they are launched on: all of them with the first, since a driver that loads a kernel later
/// waits for those that run, and one of these may wait for what has not been launched yet. Kept
/// until the process ends. Thread-safe.
class Kernels {
 public:
  /// `image` outlives the object; `name`: for errors.
  Kernels(const void* image, std::string name) : image_(image), name_(std::move(name)) {}
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  /// Throws Error kSystem: there is no such kernel, or the image has none for this GPU.
  CUfunction Find(const Device& device, const char* kernel);

  /// Enqueues DTRUN_KERNEL(kernel, Args), on the stream's device. A shape without blocks does
  /// nothing.
  template <typename Args>
  void Launch(
      const Device& device, const char* kernel, const Shape& shape, CUstream stream,
      const Args& args) {
    LaunchWithParameter(device, kernel, shape, stream, &args);
  }

 private:
  CUmodule Load(const Device& device) const;
  void LaunchWithParameter(
      const Device& device, const char* kernel, const Shape& shape, CUstream stream,
      const void* parameter);

  const void* image_;
  std::string name_;
  std::mutex mutex_;
  std::map<int, CUmodule> modules_;
  std::map<std::pair<int, std::string>, CUfunction> functions_;
};

/// As many blocks of `threads` as `items` need at one per thread, at most `most`.
inline uint32_t BlocksFor(uint64_t items, uint32_t threads, uint32_t most = 1u << 30) {
  const uint64_t blocks = (items + threads - 1) / threads;
  return static_cast<uint32_t>(blocks < most ? blocks : most);
}

}  // namespace dtrun::gpu

#endif
