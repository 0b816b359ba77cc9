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

// The common parts of the simulated libraries: conversion of values to and from double, and work in
// a stream of the simulated driver. The work keeps the order of the stream and can be captured.

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

/// Returns a function of the simulated driver, or null if the driver does not have it.
template <typename Function>
Function* DriverFunction(const char* name) {
  static void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(driver, name));
}

/// Returns false if there is no driver or the driver refuses the task. The task is never freed,
/// because a graph may run it many times.
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
