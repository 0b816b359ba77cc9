#include "models/gpu/cudnn.h"

#include <dtrun/error.h>

#include "gpu/driver.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

#define DTRUN_FIND_CUDNN_FUNCTION(name) \
  functions.name = library.Find<std::remove_pointer_t<decltype(functions.name)>>(#name);

std::optional<CudnnGraph> LoadGraph(const gpu::LoadedLibrary& library) {
  CudnnGraph functions;
  try {
    DTRUN_FOR_EACH_CUDNN_GRAPH_FUNCTION(DTRUN_FIND_CUDNN_FUNCTION)
  } catch (const Error&) {
    return std::nullopt;
  }
  return functions;
}

Cudnn Load() {
  const gpu::LoadedLibrary library({"libcudnn.so.9", "libcudnn.so"});
  Cudnn functions;
  DTRUN_FOR_EACH_CUDNN_FUNCTION(DTRUN_FIND_CUDNN_FUNCTION)
  functions.graph = LoadGraph(library);
  return functions;
}

#undef DTRUN_FIND_CUDNN_FUNCTION

}  // namespace

const Cudnn& Cudnn::Get() {
  static const Cudnn loaded = Load();
  return loaded;
}

void Cudnn::Check(cudnnStatus_t status, const char* call) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char details[1024] = "";
  if (graph) graph->cudnnGetLastErrorString(details, sizeof details);
  const char* const between = *details == '\0' ? "" : ": ";
  throw Error(
      ErrorCode::kSystem, Text(call, " failed: ", cudnnGetErrorString(status), between, details));
}

cudnnDataType_t CudnnTypeOf(DType dtype) {
  if (dtype == DType::kBF16) return CUDNN_DATA_BFLOAT16;
  return dtype == DType::kF16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

CudnnHandle::CudnnHandle(const gpu::Stream& stream) : stream_(stream) {
  const Cudnn& cudnn = Cudnn::Get();
  const gpu::DeviceScope scope(stream_.device());
  cudnn.Check(cudnn.cudnnCreate(&handle_), "cudnnCreate");
  const cudnnStatus_t status =
      cudnn.cudnnSetStream(handle_, reinterpret_cast<cudaStream_t>(stream_.get()));
  if (status != CUDNN_STATUS_SUCCESS) cudnn.cudnnDestroy(handle_);
  cudnn.Check(status, "cudnnSetStream");
}

CudnnHandle::~CudnnHandle() {
  const gpu::DeviceScope scope(stream_.device());
  Cudnn::Get().cudnnDestroy(handle_);
}

}  // namespace dtrun::models
