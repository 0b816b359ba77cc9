#ifndef DTRUN_TESTS_GPU_SIMULATOR_GRAPH_H_
#define DTRUN_TESTS_GPU_SIMULATOR_GRAPH_H_

// A CUDA graph, as programs make it of collectives and of the work of networks.

#include <cuda.h>

#include <functional>
#include <utility>

#include "gpu/driver.h"
#include "gpu/gpu_device.h"
#include "gpu/stream.h"

namespace dtrun::gpu {

/// Work that is captured once and launched as a whole, any number of times.
class Graph {
 public:
  Graph() = default;
  /// Captures the work that `enqueue` enqueues into `stream`. This includes work in streams that
  /// wait for events of `stream`, if `stream` waits for them at the end. The work does not run now.
  /// Throws the errors of `enqueue`, and Error kSystem if a part of the work cannot be in a graph.
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

inline Graph::Graph(const Stream& stream, const std::function<void()>& enqueue)
    : device_(&stream.device()) {
  const DeviceScope scope(*device_);
  const Driver& driver = Driver::Get();
  // The capture concerns this thread alone: other threads may allocate meanwhile.
  Check(
      driver.cuStreamBeginCapture(stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
      "cuStreamBeginCapture");
  CUgraph captured = nullptr;
  try {
    enqueue();
  } catch (...) {
    driver.cuStreamEndCapture(stream.get(), &captured);
    if (captured != nullptr) driver.cuGraphDestroy(captured);
    throw;
  }
  Check(driver.cuStreamEndCapture(stream.get(), &captured), "cuStreamEndCapture");
  const CUresult result = driver.cuGraphInstantiateWithFlags(&graph_, captured, 0);
  driver.cuGraphDestroy(captured);
  Check(result, "cuGraphInstantiate");
}

inline Graph::~Graph() {
  if (graph_ == nullptr) return;
  const DeviceScope scope(*device_);
  Driver::Get().cuGraphExecDestroy(graph_);
}

inline Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(graph_, other.graph_);
  return *this;
}

inline void Graph::Launch(CUstream stream) const {
  const DeviceScope scope(*device_);
  Check(Driver::Get().cuGraphLaunch(graph_, stream), "cuGraphLaunch");
}

}  // namespace dtrun::gpu

#endif
