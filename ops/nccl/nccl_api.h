#ifndef DTRUN_OPS_NCCL_NCCL_API_H_
#define DTRUN_OPS_NCCL_NCCL_API_H_

#include <nccl.h>

#include <string>

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

}  // namespace dtrun::ops

#endif
