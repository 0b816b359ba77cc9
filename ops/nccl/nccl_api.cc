#include "ops/nccl/nccl_api.h"

#include <chrono>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops {
namespace {

using base::Text;

constexpr auto kBetweenLooks = std::chrono::milliseconds(100);

NcclApi Load() {
  const gpu::LoadedLibrary library({"libnccl.so.2", "libnccl.so"});
  NcclApi functions;
  DTRUN_FOR_EACH_NCCL_FUNCTION(DTRUN_FIND_IN_LIBRARY)
  return functions;
}

}  // namespace

const NcclApi& NcclApi::Get() {
  static const NcclApi api = Load();
  return api;
}

void NcclApi::Check(ncclResult_t result, const char* call, ncclComm_t comm) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw Error(
      ErrorCode::kSystem,
      Text(call, " failed: ", ncclGetErrorString(result), " (", ncclGetLastError(comm), ")"));
}

NcclWatch::NcclWatch(
    const NcclApi& api, ncclComm_t comm, const gpu::Device& device, Patience patience,
    std::string ranks)
    : api_(api),
      comm_(comm),
      device_(device),
      patience_(patience),
      ranks_(std::move(ranks)),
      thread_([this] { Run(); }) {}

NcclWatch::~NcclWatch() { Stop(); }

void NcclWatch::Stop() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<gpu::Event> NcclWatch::TakeEvent() {
  if (spare_.empty()) return std::make_unique<gpu::Event>(device_);
  std::unique_ptr<gpu::Event> event = std::move(spare_.back());
  spare_.pop_back();
  return event;
}

void NcclWatch::Add(std::string name, CUstream stream) {
  std::lock_guard lock(mutex_);
  Entry entry{std::move(name), TakeEvent(), patience_.clock.Now() + patience_.timeout};
  entry.event->Record(stream);
  entries_.push_back(std::move(entry));
  if (entries_.size() == 1) changed_.notify_all();
}

void NcclWatch::Check() const {
  std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

bool NcclWatch::aborted() const {
  std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

void NcclWatch::Run() {
  // While a thread captures a graph in the mode that PyTorch uses, no thread of the process may
  // query an event: a query would break the capture. The relaxed mode lets this thread query
  // events.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  gpu::Driver::Get().cuThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (entries_.empty() || error_ != nullptr) {
      changed_.wait(lock, [this] { return ends_ || (!entries_.empty() && error_ == nullptr); });
    } else {
      changed_.wait_for(lock, kBetweenLooks, [this] { return ends_; });
    }
    if (!ends_) Look();
  }
}

// Called under the lock.
void NcclWatch::Look() {
  try {
    while (!entries_.empty() && entries_.front().event->Reached()) {
      spare_.push_back(std::move(entries_.front().event));
      entries_.pop_front();
    }
    if (entries_.empty()) return;
    ncclResult_t result = ncclSuccess;
    api_.ncclCommGetAsyncError(comm_, &result);
    if (result != ncclSuccess && result != ncclInProgress) {
      throw Error(
          ErrorCode::kPeerLost, Text(
                                    entries_.front().name, " of ", ranks_,
                                    " has failed in NCCL: ", api_.ncclGetErrorString(result), " (",
                                    api_.ncclGetLastError(comm_), ")"));
    }
    if (patience_.clock.Now() < entries_.front().deadline) return;
    throw Error(
        ErrorCode::kTimeout,
        Text(
            entries_.front().name, " of ", ranks_, " is not done on GPU ", device_.index(),
            " after ", std::chrono::duration_cast<std::chrono::seconds>(patience_.timeout).count(),
            " s: a rank has not called the operation, or has called another operation"));
  } catch (...) {
    Abort(std::current_exception());
  }
}

void NcclWatch::Abort(std::exception_ptr error) {
  error_ = std::move(error);
  // The kernels of the communicator end, so that no thread waits for a stream forever.
  api_.ncclCommAbort(comm_);
  entries_.clear();
}

}  // namespace dtrun::ops
