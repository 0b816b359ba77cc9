#ifndef DTRUN_OPS_NCCL_NCCL_API_H_
#define DTRUN_OPS_NCCL_NCCL_API_H_

#include <nccl.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "gpu/driver.h"
#include "gpu/stream.h"

namespace dtrun::ops {

// clang-format off
#define DTRUN_FOR_EACH_NCCL_FUNCTION(X)                                                           \
  X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId) X(ncclCommInitRank)                \
  X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommGetAsyncError) X(ncclGroupStart) X(ncclGroupEnd)  \
  X(ncclAllReduce) X(ncclReduce) X(ncclBroadcast) X(ncclAllGather) X(ncclReduceScatter)           \
  X(ncclSend) X(ncclRecv) X(ncclRedOpCreatePreMulSum) X(ncclRedOpDestroy)
// clang-format on

/// The functions of NCCL (libnccl.so.2). The first call of Get loads the library, which stays
/// loaded. Thread-safe.
struct NcclApi {
  DTRUN_FOR_EACH_NCCL_FUNCTION(DTRUN_LIBRARY_MEMBER)

  /// Throws Error kUnavailable, with the loader's reason, if NCCL is not installed.
  static const NcclApi& Get();

  /// Throws Error kSystem, "`call` failed: ..." with NCCL's own message, unless NCCL has accepted
  /// the call.
  void Check(ncclResult_t result, const char* call, ncclComm_t comm = nullptr) const;
};

/// Watches the operations under way on an NCCL communicator from its own thread, because the host
/// may be waiting for a stream. If an operation misses its deadline, or NCCL reports an
/// asynchronous error, the watch aborts the communicator. The communicator's kernels then end.
/// Thread-safe.
class NcclWatch {
 public:
  /// The time limit of an operation, and the clock for it. The clock outlives the watch.
  struct Patience {
    base::Duration timeout;
    const base::Clock& clock;
  };

  NcclWatch(
      const NcclApi& api, ncclComm_t comm, const gpu::Device& device, Patience patience,
      std::string ranks);
  ~NcclWatch();
  /// Ends the thread. The watch aborts nothing afterwards.
  void Stop();

  /// Tells the watch that `name` has been enqueued into `stream`. It is under way until the stream
  /// has passed this point.
  void Add(std::string name, CUstream stream);
  /// Throws the error for which the watch has aborted the communicator, if any.
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
