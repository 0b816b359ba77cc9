#ifndef DTRUN_TESTS_GPU_SIMULATOR_CUDNN_HANDLE_H_
#define DTRUN_TESTS_GPU_SIMULATOR_CUDNN_HANDLE_H_

#include <cudnn.h>

#include <functional>
#include <utility>

#include "tests/gpu_simulator/host_math.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

struct cudnnContext {
  CUstream stream = nullptr;
};

namespace dtrun::gpu_simulator {

inline cudaDataType_t CudaTypeOf(cudnnDataType_t type) {
  if (type == CUDNN_DATA_BFLOAT16) return CUDA_R_16BF;
  return type == CUDNN_DATA_HALF ? CUDA_R_16F : CUDA_R_32F;
}

inline cudnnStatus_t EnqueueFor(cudnnHandle_t handle, std::function<void()> task) {
  return EnqueueOnStream(handle->stream, std::move(task)) ? CUDNN_STATUS_SUCCESS
                                                          : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // namespace dtrun::gpu_simulator

#endif
