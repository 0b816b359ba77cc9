#ifndef DTRUN_GPU_STREAM_H_
#define DTRUN_GPU_STREAM_H_

#include <cuda.h>

#include <cstdint>

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
void Fill(CUdeviceptr to, uint8_t value, uint64_t bytes, CUstream stream);

inline CUdeviceptr AddressOf(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace dtrun::gpu

#endif
