#ifndef DTRUN_OPS_CUDA_WATCH_H_
#define DTRUN_OPS_CUDA_WATCH_H_

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "ops/cuda/protocol.h"
#include "ops/engine.h"

namespace dtrun::ops::cuda {

/// Looks, on a thread of its own, whether a kernel waits too long for those of other ranks, or in
/// vain, and makes it leave. Kernels in graphs are watched as well: it knows nothing of calls but
/// what they report themselves.
class Watch {
 public:
  /// Both outlive it. Without an engine, where nothing has to be waited for, it never ends a wait.
  Watch(Report& report, const Engine* engine);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void Run();

  Report& report_;
  const Engine* engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace dtrun::ops::cuda

#endif
