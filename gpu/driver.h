#ifndef DTRUN_GPU_DRIVER_H_
#define DTRUN_GPU_DRIVER_H_

#include <cuda.h>

#include <initializer_list>
#include <string>
#include <type_traits>

namespace dtrun::gpu {

// The functions of CUDA's driver that dtrun calls. cuda.h defines some of these names as macros for
// versioned names (cuMemAlloc is cuMemAlloc_v2). The members of Driver have the versioned names.
// clang-format off
#define DTRUN_FOR_EACH_DRIVER_FUNCTION(X)                                                         \
  X(cuInit) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGetCount) X(cuDeviceGet)              \
  X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceGetPCIBusId) X(cuDeviceTotalMem)           \
  X(cuDevicePrimaryCtxRetain) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxSynchronize)          \
  X(cuCtxGetStreamPriorityRange) X(cuDeviceCanAccessPeer) X(cuMemGetInfo) X(cuMemAlloc)           \
  X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync)       \
  X(cuMemcpyDtoDAsync) X(cuMemsetD8Async) X(cuMemGetAllocationGranularity)                        \
  X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap)           \
  X(cuMemUnmap) X(cuMemSetAccess) X(cuMemExportToShareableHandle)                                 \
  X(cuMemImportFromShareableHandle)                                                               \
  X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery)        \
  X(cuStreamWaitEvent) X(cuStreamIsCapturing) X(cuStreamBeginCapture) X(cuStreamEndCapture)       \
  X(cuLaunchHostFunc) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery)         \
  X(cuEventSynchronize) X(cuEventElapsedTime) X(cuGraphInstantiateWithFlags) X(cuGraphLaunch)     \
  X(cuGraphDestroy) X(cuGraphExecDestroy) X(cuModuleLoadData)                                     \
  X(cuModuleGetFunction) X(cuModuleGetFunctionCount) X(cuModuleEnumerateFunctions) X(cuFuncLoad)  \
  X(cuThreadExchangeStreamCaptureMode) X(cuLaunchKernel) X(cuPointerGetAttribute)
// clang-format on

/// A pointer to a function of a library, as a member of a struct.
#define DTRUN_LIBRARY_MEMBER(name) decltype(&::name) name = nullptr;
/// Finds the function for that member of `functions` in `library`, a LoadedLibrary.
#define DTRUN_FIND_IN_LIBRARY(name) \
  functions.name = library.Find<std::remove_pointer_t<decltype(functions.name)>>(#name);

/// The functions of CUDA's driver (libcuda.so.1). The first call of Get loads the driver, which
/// stays loaded. Thread-safe.
struct Driver {
  DTRUN_FOR_EACH_DRIVER_FUNCTION(DTRUN_LIBRARY_MEMBER)

  /// Throws Error kUnavailable, "no GPU: ..." with the reason, if there is no driver, if the driver
  /// lacks a function that dtrun needs, or if it lists no GPU.
  static const Driver& Get();
};

/// "CUDA_ERROR_INVALID_VALUE (invalid argument)"
std::string Describe(CUresult result);

/// Throws Error kSystem, "`call` failed: ...", unless `result` is CUDA_SUCCESS. `call` names the
/// request in the driver's words: "cuLaunchKernel dtrun_adam".
void Check(CUresult result, const char* call);

/// A library of NVIDIA's other than the driver, such as libnccl.so.2. Find returns its functions by
/// name.
class LoadedLibrary {
 public:
  /// Loads the first of `names` that exists. The library stays loaded until the process ends.
  /// Throws Error kUnavailable with the loader's message for the first name.
  LoadedLibrary(std::initializer_list<const char*> names);

  /// Throws Error kUnavailable if the library has no such function.
  template <typename Function>
  Function* Find(const char* name) const {
    return reinterpret_cast<Function*>(FindSymbol(name));
  }
  /// The name, of `names`, under which the library was found.
  const std::string& name() const { return name_; }

 private:
  void* FindSymbol(const char* name) const;

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace dtrun::gpu

#endif
