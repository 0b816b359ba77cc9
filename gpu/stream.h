#ifndef DTRUN_GPU_STREAM_H_
#define DTRUN_GPU_STREAM_H_

#include <cuda.h>

#include <cstdint>
#include <functional>

#include "gpu/gpu_device.h"

namespace dtrun::gpu {

enum class Priority { kNormal, kHigh };

/// Work of a device, done in its order. Does not wait for the default stream. One thread at a time.
class Stream {
 public:
  explicit Stream(const Device& device, Priority priority = Priority::kNormal);
  /// What is enqueued is still done.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream get() const { return stream_; }
  const Device& device() const { return device_; }
  /// Waits for all that is enqueued. Throws Error kSystem if any of it failed.
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

  /// The point is behind what is enqueued in `stream` now.
  void Record(CUstream stream);
  /// Further work of `stream` begins when the point has been reached.
  void Delay(CUstream stream) const;
  /// Whether the point has been reached; true before the first Record.
  bool Reached() const;
  void Synchronize() const;
  /// From `begin` to this point, both reached and with Timing::kOn.
  double MillisecondsSince(const Event& begin) const;

 private:
  const Device& device_;
  CUevent event_ = nullptr;
};

/// Work that was enqueued once and is launched as a whole, as often as wanted.
class Graph {
 public:
  Graph() = default;
  /// What `enqueue` enqueues into `stream`, and into streams that wait for events of it and that it
  /// waits for in the end; none of it is done now. Throws what `enqueue` throws, and Error kSystem
  /// when something in it cannot be a part of a graph.
  Graph(const Stream& stream, const std::function<void()>& enqueue);
  ~Graph();
  Graph(Graph&& other) noexcept { *this = static_cast<Graph&&>(other); }
  Graph& operator=(Graph&& other) noexcept;

  void Launch(CUstream stream) const;
  explicit operator bool() const { return graph_ != nullptr; }

 private:
  const Device* device_ = nullptr;
  CUgraphExec graph_ = nullptr;
};

/// Whether what is enqueued in `stream` becomes a part of a graph now.
bool IsCapturing(CUstream stream);

// Copies and fills, enqueued into `stream`; addresses and sizes are bytes. Host memory that is not
// pinned makes a copy wait for the stream.
void CopyToDevice(CUdeviceptr to, const void* from, uint64_t bytes, CUstream stream);
void CopyToHost(void* to, CUdeviceptr from, uint64_t bytes, CUstream stream);
void CopyOnDevice(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream);
void Fill(CUdeviceptr to, uint8_t value, uint64_t bytes, CUstream stream);

inline CUdeviceptr AddressOf(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace dtrun::gpu

#endif
