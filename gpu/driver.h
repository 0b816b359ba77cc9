#ifndef DTRUN_GPU_DRIVER_H_
#define DTRUN_GPU_DRIVER_H_

#include <cuda.h>

#include <string>

namespace dtrun::gpu {

// The functions of CUDA's driver that dtrun calls. The names are cuda.h's, which defines some of
// them as versions of themselves (cuMemAlloc is cuMemAlloc_v2); so are the members of Driver.
// clang-format off
#define DTRUN_FOR_EACH_DRIVER_FUNCTION(X)                                                         \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGetCount)       \
  X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceGetPCIBusId)                \
  X(cuDeviceTotalMem) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease)                    \
  X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetCurrent) X(cuCtxSynchronize)                   \
  X(cuCtxGetStreamPriorityRange) X(cuCtxEnablePeerAccess) X(cuDeviceCanAccessPeer)                \
  X(cuMemGetInfo) X(cuMemAlloc)                                                                   \
  X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync)       \
  X(cuMemcpyDtoDAsync) X(cuMemsetD8Async) X(cuMemsetD32Async) X(cuMemGetAllocationGranularity)    \
  X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap)           \
  X(cuMemUnmap) X(cuMemSetAccess) X(cuMemExportToShareableHandle)                                 \
  X(cuMemImportFromShareableHandle) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle)                    \
  X(cuIpcCloseMemHandle) X(cuMemGetAddressRange) X(cuPointerGetAttribute)                         \
  X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery)        \
  X(cuStreamWaitEvent) X(cuStreamIsCapturing) X(cuStreamBeginCapture) X(cuStreamEndCapture)       \
  X(cuLaunchHostFunc) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery)         \
  X(cuEventSynchronize) X(cuEventElapsedTime) X(cuGraphInstantiateWithFlags) X(cuGraphLaunch)     \
  X(cuGraphDestroy) X(cuGraphExecDestroy) X(cuModuleLoadData) X(cuModuleUnload)                   \
  X(cuModuleGetFunction) X(cuModuleGetFunctionCount) X(cuModuleEnumerateFunctions) X(cuFuncLoad)  \
  X(cuThreadExchangeStreamCaptureMode) X(cuLaunchKernel) X(cuFuncSetAttribute)                    \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor)
// clang-format on

/// CUDA's driver, libcuda.so.1, loaded by the first who asks and kept. Thread-safe.
struct Driver {
#define DTRUN_DRIVER_MEMBER(name) decltype(&::name) name = nullptr;
  DTRUN_FOR_EACH_DRIVER_FUNCTION(DTRUN_DRIVER_MEMBER)
#undef DTRUN_DRIVER_MEMBER

  /// Throws Error kUnavailable, "no GPU: ..." with the reason, where there is no driver, or one
  /// without a function that dtrun needs, or one that lists no GPU.
  static const Driver& Get();
};

/// "CUDA_ERROR_INVALID_VALUE (invalid argument)"
std::string Describe(CUresult result);

/// Throws Error kSystem, "`call` failed: ...", unless the driver has done it. `call` says what was
/// asked for, in the driver's words: "cuLaunchKernel dtrun_adam".
void Check(CUresult result, const char* call);

/// A function of another library of NVIDIA's (libnccl.so.2), found in it by name.
class LoadedLibrary {
 public:
  /// Loads the first of `names` that there is, and keeps it for as long as the process runs. Throws
  /// Error kUnavailable with the loader's words for the first one.
  LoadedLibrary(std::initializer_list<const char*> names);

  template <typename Function>
  Function* Find(const char* name) const {
    return reinterpret_cast<Function*>(FindSymbol(name));
  }
  /// Where the library lies.
  const std::string& name() const { return name_; }

 private:
  void* FindSymbol(const char* name) const;

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace dtrun::gpu

#endif
