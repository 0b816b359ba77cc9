#ifndef DTRUN_GPU_KERNELS_H_
#define DTRUN_GPU_KERNELS_H_

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "gpu/gpu_device.h"

namespace dtrun::gpu {

/// The shape of a launch: blocks, and threads per block.
struct Shape {
  uint32_t blocks = 1;
  uint32_t threads = 256;
  uint32_t blocks_y = 1;
};

/// The kernels of one image, which the rule cuda_kernels makes of .cu files. The first use of a
/// kernel on a device loads all kernels of the image there. A driver that loads a kernel later
/// waits for running kernels, and a running kernel may wait for a kernel that is not launched yet.
/// The image stays loaded until the process ends. Thread-safe.
class Kernels {
 public:
  /// `image` outlives the object. Errors contain `name`.
  Kernels(const void* image, std::string name) : image_(image), name_(std::move(name)) {}
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  /// Throws Error kSystem if there is no such kernel, or no such kernel for this GPU.
  CUfunction Find(const Device& device, const char* kernel);

  /// Enqueues DTRUN_KERNEL(kernel, Args) into `stream`, a stream of `device`. If the shape has no
  /// blocks, enqueues no kernel.
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

/// The number of blocks of `threads` for `items` at one item per thread, at most `most`.
inline uint32_t BlocksFor(uint64_t items, uint32_t threads, uint32_t most = 1u << 30) {
  const uint64_t blocks = (items + threads - 1) / threads;
  return static_cast<uint32_t>(blocks < most ? blocks : most);
}

}  // namespace dtrun::gpu

#endif
