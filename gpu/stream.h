#ifndef DTRUN_GPU_STREAM_H_
#define DTRUN_GPU_STREAM_H_

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "dtrun/types.h"
#include "gpu/gpu_device.h"

namespace dtrun::gpu {

enum class Priority { kNormal, kHigh };

/// A stream of a device, which runs its work in order. It does not wait for the default stream. Not
/// thread-safe.
class Stream {
 public:
  explicit Stream(const Device& device, Priority priority = Priority::kNormal);
  /// Work that is enqueued already still runs.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream get() const { return stream_; }
  const Device& device() const { return device_; }
  /// Waits for all enqueued work. Throws Error kSystem if any of it failed.
  void Synchronize() const;

 private:
  const Device& device_;
  CUstream stream_ = nullptr;
};

/// A point in a stream's work.
class Event {
 public:
  enum class Timing { kOff, kOn };

  explicit Event(const Device& device, Timing timing = Timing::kOff);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Sets the point after the work that is enqueued in `stream` now.
  void Record(CUstream stream);
  /// Makes later work of `stream` wait for the point.
  void Delay(CUstream stream) const;
  /// Whether the point has been reached; true before the first Record.
  bool Reached() const;
  void Synchronize() const;
  /// The time from `begin` to this point. Both are reached and have Timing::kOn.
  double MillisecondsSince(const Event& begin) const;

 private:
  const Device& device_;
  CUevent event_ = nullptr;
};

/// Whether work that is enqueued in `stream` now becomes a part of a graph.
bool IsCapturing(CUstream stream);

// Copies and fills, enqueued into `stream`. Addresses and sizes are in bytes. If host memory is not
// pinned, a copy first waits for the work of the stream, except in a capture.
void CopyToDevice(CUdeviceptr to, const void* from, uint64_t bytes, CUstream stream);
void CopyToHost(void* to, CUdeviceptr from, uint64_t bytes, CUstream stream);
void CopyOnDevice(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream);
/// Copies the bytes of `from` to `to`. Each lies in the memory of the device or of the host, and at
/// least one in the memory of the device.
void Copy(const Buffer& from, const Buffer& to, CUstream stream);
void Fill(CUdeviceptr to, uint8_t value, uint64_t bytes, CUstream stream);

inline CUdeviceptr AddressOf(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

/// The shape of a launch: blocks, and threads per block.
struct Shape {
  uint32_t blocks = 1;
  uint32_t threads = 256;
  uint32_t blocks_y = 1;
};

/// The kernels of one image, which the rule cuda_kernels makes of .cu files. The first use of a
/// kernel on a device loads all kernels of the image there, until the process ends. Objects stay
/// until then as well. Thread-safe.
class Kernels {
 public:
  /// `image` outlives the object. Errors contain `name`.
  Kernels(const void* image, std::string name);
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  /// Throws Error kSystem if there is no such kernel, or no such kernel for this GPU.
  CUfunction Find(const Device& device, const char* kernel);

  /// Loads the kernels of all objects of this class. The driver loads kernels when no kernel runs:
  /// if a kernel waits for a peer, and the peer is a thread that loads kernels, both wait forever.
  /// None can be loaded while a graph is captured either. Call this before the first launch of a
  /// kernel that waits for peers. Thread-safe.
  static void LoadAll(const Device& device);

  /// Enqueues DTRUN_KERNEL(kernel, Args) into `stream`, a stream of `device`. If the shape has no
  /// blocks, enqueues no kernel.
  template <typename Args>
  void Launch(
      const Device& device, const char* kernel, const Shape& shape, CUstream stream,
      const Args& args) {
    LaunchWithParameter(device, kernel, shape, stream, &args);
  }

 private:
  CUmodule ModuleOf(const Device& device);
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
