#ifndef DTRUN_OPS_NCCL_NCCL_API_H_
#define DTRUN_OPS_NCCL_NCCL_API_H_

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

#include "base/process.h"
#include "gpu/stream.h"

namespace dtrun::ops {

#define DTRUN_FOR_EACH_NCCL_FUNCTION(X) \
  X(ncclGetVersion)                     \
  X(ncclGetErrorString)                 \
  X(ncclGetLastError)                   \
  X(ncclGetUniqueId)                    \
  X(ncclCommInitRank)                   \
  X(ncclCommDestroy)                    \
  X(ncclCommAbort)                      \
  X(ncclCommGetAsyncError)              \
  X(ncclGroupStart)                     \
  X(ncclGroupEnd)                       \
  X(ncclAllReduce)                      \
  X(ncclReduce)                         \
  X(ncclBroadcast)                      \
  X(ncclAllGather)                      \
  X(ncclReduceScatter)                  \
  X(ncclSend)                           \
  X(ncclRecv)                           \
  X(ncclRedOpCreatePreMulSum)           \
  X(ncclRedOpDestroy)

/// NCCL, libnccl.so.2, loaded by the first who asks and kept. Thread-safe.
struct NcclApi {
#define DTRUN_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
  DTRUN_FOR_EACH_NCCL_FUNCTION(DTRUN_NCCL_MEMBER)
#undef DTRUN_NCCL_MEMBER

  /// Throws Error kUnavailable, with the loader's reason, where it is not installed.
  static const NcclApi& Get();

  /// Throws Error kSystem, "`call` failed: ..." with NCCL's own words, unless it has done it.
  void Check(ncclResult_t result, const char* call, ncclComm_t comm = nullptr) const;
};

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

#endif  // DTRUN_OPS_NCCL_NCCL_API_H_
