#include "models/gpu/trial.h"

#include <dtrun/error.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "gpu/driver.h"

namespace dtrun::models {

// Throws unless the work can be captured into a graph.
void CheckCapture(const gpu::Stream& stream, const std::function<void()>& enqueue) {
  const gpu::DeviceScope scope(stream.device());
  const gpu::Driver& driver = gpu::Driver::Get();
  CUgraph captured = nullptr;
  driver.cuStreamBeginCapture(stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  const auto end = [&] {
    driver.cuStreamEndCapture(stream.get(), &captured);
    if (captured != nullptr) driver.cuGraphDestroy(captured);
  };
  try {
    enqueue();
  } catch (const Error&) {
    end();
    throw;
  }
  end();
}

// All runs are enqueued one after the other, with events between them. So the host is ahead of the
// device from the second run on.
double MillisecondsOf(const gpu::Stream& stream, const std::function<void()>& enqueue) {
  constexpr size_t kRuns = 5;
  enqueue();  // loads kernels, which is not possible in a capture
  CheckCapture(stream, enqueue);
  std::vector<std::unique_ptr<gpu::Event>> events;
  for (size_t i = 0; i <= kRuns; ++i) {
    events.push_back(std::make_unique<gpu::Event>(stream.device(), gpu::Event::Timing::kOn));
    if (i > 0) enqueue();
    events.back()->Record(stream.get());
  }
  stream.Synchronize();
  double shortest = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i <= kRuns; ++i)
    shortest = std::min(shortest, events[i]->MillisecondsSince(*events[i - 1]));
  return shortest;
}

std::optional<Selected> SelectCandidate(
    size_t count, Selection selection, const std::function<double(size_t)>& milliseconds,
    std::string& problem) {
  constexpr double kChance = 0.98;
  const size_t most = selection == Selection::kFirst ? 1 : 12;
  std::optional<Selected> best;
  for (size_t i = 0, usable = 0; i < count && usable < most; ++i) {
    try {
      const double taken = milliseconds(i);
      ++usable;
      if (!best || taken < kChance * best->milliseconds) best = Selected{i, taken};
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  return best;
}

}  // namespace dtrun::models
