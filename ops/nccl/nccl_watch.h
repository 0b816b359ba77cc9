#ifndef DTRUN_OPS_NCCL_NCCL_WATCH_H_
#define DTRUN_OPS_NCCL_NCCL_WATCH_H_

#include <nccl.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gpu/stream.h"
#include "ops/nccl/nccl_api.h"

namespace dtrun::ops {

/// Watches what a communicator of NCCL has under way, in a thread of its own, since the host may
/// wait for a stream meanwhile: an operation that is not done in time, and NCCL's asynchronous
/// errors. Then it aborts the communicator, whose kernels end. Thread-safe.
class NcclWatch {
 public:
  /// How long an operation may take, and by which clock, which outlives the watch.
  struct Patience {
    base::Duration timeout;
    const base::Clock& clock;
  };

  /// `before_abort`, if there is one, is called by that thread; it outlives the watch.
  NcclWatch(
      const NcclApi& api, ncclComm_t comm, const gpu::Device& device, Patience patience,
      std::string ranks, std::function<void()> before_abort);
  /// Ends the thread.
  ~NcclWatch();

  /// `name` has been enqueued into `stream`, and is under way until the stream is past this point.
  void Add(std::string name, CUstream stream);
  /// Throws what has gone wrong.
  void Check() const;
  bool aborted() const;

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<gpu::Event> event;
    base::TimePoint deadline;
  };

  void Run();
  void Look();
  void Abort(std::exception_ptr error);
  std::unique_ptr<gpu::Event> TakeEvent();

  const NcclApi& api_;
  ncclComm_t comm_;
  const gpu::Device& device_;
  const Patience patience_;
  const std::string ranks_;
  const std::function<void()> before_abort_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  std::vector<std::unique_ptr<gpu::Event>> spare_;
  std::exception_ptr error_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace dtrun::ops

#endif
