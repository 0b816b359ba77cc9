#ifndef DTRUN_TESTS_GPU_SIMULATOR_HOST_MATH_H_
#define DTRUN_TESTS_GPU_SIMULATOR_HOST_MATH_H_

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>
#include <library_types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

// What the simulated libraries have in common: values of several types as doubles, and work that is
// enqueued into a stream of the simulated driver, in its order and as a part of its graphs.

namespace dtrun::gpu_simulator {

inline double LoadValue(const void* from, uint64_t at, cudaDataType_t type) {
  switch (type) {
    case CUDA_R_16BF:
      return static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16*>(from)[at]));
    case CUDA_R_16F: return static_cast<double>(__half2float(static_cast<const __half*>(from)[at]));
    default: return static_cast<double>(static_cast<const float*>(from)[at]);
  }
}

inline void StoreValue(double value, void* to, uint64_t at, cudaDataType_t type) {
  const auto rounded = static_cast<float>(value);
  switch (type) {
    case CUDA_R_16BF: static_cast<__nv_bfloat16*>(to)[at] = __float2bfloat16(rounded); break;
    case CUDA_R_16F: static_cast<__half*>(to)[at] = __float2half(rounded); break;
    default: static_cast<float*>(to)[at] = rounded; break;
  }
}

/// A function of the simulated driver; null where there is none.
template <typename Function>
Function* DriverFunction(const char* name) {
  static void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(driver, name));
}

/// False: there is no driver, or it refuses. A task that is a part of a graph is done often, so it
/// is never freed.
inline bool EnqueueOnStream(CUstream stream, std::function<void()> task) {
  static auto* const launch = DriverFunction<decltype(::cuLaunchHostFunc)>("cuLaunchHostFunc");
  if (launch == nullptr) return false;
  auto* const kept = new std::function<void()>(std::move(task));
  const CUhostFn call = [](void* data) { (*static_cast<std::function<void()>*>(data))(); };
  return launch(stream, call, kept) == CUDA_SUCCESS;
}

inline bool IsCapturing(CUstream stream) {
  static auto* const ask = DriverFunction<decltype(::cuStreamIsCapturing)>("cuStreamIsCapturing");
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return ask != nullptr && ask(stream, &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

}  // namespace dtrun::gpu_simulator

#endif
