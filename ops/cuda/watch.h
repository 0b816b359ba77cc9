#ifndef DTRUN_OPS_CUDA_WATCH_H_
#define DTRUN_OPS_CUDA_WATCH_H_

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "ops/cuda/protocol.h"
#include "ops/engine.h"

namespace dtrun::ops::cuda {

/// Looks, on a thread of its own, whether a kernel waits too long for those of other ranks, or in
/// vain, and makes it leave. Kernels in graphs are watched as well: it knows nothing of calls but
/// what they report themselves.
class Watch {
 public:
  /// All outlive it: `count` reports of this rank's kernels. Without an engine, where nothing has
  /// to be waited for, it never ends a wait.
  Watch(Report* reports, int count, const Engine* engine);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  // What it has seen of the calls under way of one report.
  struct Seen {
    uint32_t begun = 0;
    base::TimePoint since = {};
  };

  void Run();
  void Look(Report& report, Seen& seen, base::TimePoint now) const;

  Report* reports_;
  std::vector<Seen> seen_;
  const Engine* engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace dtrun::ops::cuda

#endif
