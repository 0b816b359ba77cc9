#include "models/gpu/trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

namespace dtrun::models {

// All launches are enqueued one after the other, with events between them. So the host is ahead of
// the device from the second launch on.
double MillisecondsInGraph(const gpu::Stream& stream, const std::function<void()>& enqueue) {
  constexpr size_t kLaunches = 5;
  enqueue();  // loads kernels, which is not possible in a graph
  const gpu::Graph graph(stream, enqueue);
  std::vector<std::unique_ptr<gpu::Event>> events;
  for (size_t i = 0; i <= kLaunches; ++i) {
    events.push_back(std::make_unique<gpu::Event>(stream.device(), gpu::Event::Timing::kOn));
    if (i > 0) graph.Launch(stream.get());
    events.back()->Record(stream.get());
  }
  stream.Synchronize();
  double shortest = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i <= kLaunches; ++i)
    shortest = std::min(shortest, events[i]->MillisecondsSince(*events[i - 1]));
  return shortest;
}

std::optional<Fastest> FindFastest(
    size_t count, const TrialLimits& limits, const std::function<double(size_t)>& try_one) {
  const auto start = std::chrono::steady_clock::now();
  std::optional<Fastest> fastest;
  for (size_t i = 0, tried = 0; i < count && tried < limits.most; ++i) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (fastest && taken.count() >= limits.seconds) break;
    const double milliseconds = try_one(i);
    if (std::isinf(milliseconds)) continue;
    ++tried;
    if (!fastest || milliseconds < kChance * fastest->milliseconds)
      fastest = Fastest{i, milliseconds};
  }
  return fastest;
}

}  // namespace dtrun::models
