#include "ops/nccl/nccl_api.h"

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/driver.h"

namespace dtrun::ops {
namespace {

NcclApi Load() {
  const gpu::LoadedLibrary library({"libnccl.so.2", "libnccl.so"});
  NcclApi api;
#define DTRUN_FIND_NCCL_FUNCTION(name) \
  api.name = library.Find<std::remove_pointer_t<decltype(api.name)>>(#name);
  DTRUN_FOR_EACH_NCCL_FUNCTION(DTRUN_FIND_NCCL_FUNCTION)
#undef DTRUN_FIND_NCCL_FUNCTION
  return api;
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
      base::Text(call, " failed: ", ncclGetErrorString(result), " (", ncclGetLastError(comm), ")"));
}

}  // namespace dtrun::ops
