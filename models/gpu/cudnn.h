#ifndef DTRUN_MODELS_GPU_CUDNN_H_
#define DTRUN_MODELS_GPU_CUDNN_H_

#include <cudnn.h>
#include <dtrun/types.h>

#include <optional>

#include "gpu/stream.h"

namespace dtrun::models {

// The functions of cuDNN that are called; it is loaded when the first network needs it.
// clang-format off
#define DTRUN_FOR_EACH_CUDNN_FUNCTION(X)                                                          \
  X(cudnnCreate) X(cudnnDestroy) X(cudnnSetStream) X(cudnnGetErrorString)                         \
  X(cudnnCreateTensorDescriptor) X(cudnnSetTensor4dDescriptor) X(cudnnDestroyTensorDescriptor)    \
  X(cudnnCreateFilterDescriptor) X(cudnnSetFilter4dDescriptor) X(cudnnDestroyFilterDescriptor)    \
  X(cudnnCreateConvolutionDescriptor) X(cudnnSetConvolution2dDescriptor)                          \
  X(cudnnSetConvolutionMathType) X(cudnnDestroyConvolutionDescriptor)                             \
  X(cudnnGetConvolutionForwardAlgorithm_v7) X(cudnnGetConvolutionBackwardDataAlgorithm_v7)        \
  X(cudnnGetConvolutionBackwardFilterAlgorithm_v7) X(cudnnConvolutionForward)                     \
  X(cudnnConvolutionBackwardData) X(cudnnConvolutionBackwardFilter)

// Those of its graph API, which NVIDIA also calls the backend.
#define DTRUN_FOR_EACH_CUDNN_GRAPH_FUNCTION(X)                                                    \
  X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor) X(cudnnBackendSetAttribute)    \
  X(cudnnBackendGetAttribute) X(cudnnBackendFinalize) X(cudnnBackendExecute)                      \
  X(cudnnGetLastErrorString)
// clang-format on

#define DTRUN_CUDNN_MEMBER(name) decltype(&::name) name = nullptr;
struct CudnnGraph {
  DTRUN_FOR_EACH_CUDNN_GRAPH_FUNCTION(DTRUN_CUDNN_MEMBER)
};

/// NVIDIA's cuDNN 9. Thread-safe.
struct Cudnn {
  DTRUN_FOR_EACH_CUDNN_FUNCTION(DTRUN_CUDNN_MEMBER)
  std::optional<CudnnGraph> graph;  ///< none: a library without one of these functions

  /// Throws Error kUnavailable, with the loader's words, where there is none.
  static const Cudnn& Get();
  /// Throws Error kSystem, "`call` failed: ..." with cuDNN's words, unless cuDNN has done it.
  void Check(cudnnStatus_t status, const char* call) const;
};
#undef DTRUN_CUDNN_MEMBER

/// The type of cuDNN's for f32, bf16 or f16.
cudnnDataType_t CudnnTypeOf(DType dtype);

/// What cuDNN needs to enqueue into a stream. One thread at a time.
class CudnnHandle {
 public:
  /// Throws Error kUnavailable without cuDNN, kSystem when it refuses.
  explicit CudnnHandle(const gpu::Stream& stream);
  ~CudnnHandle();
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;

  cudnnHandle_t get() const { return handle_; }
  const gpu::Stream& stream() const { return stream_; }

 private:
  const gpu::Stream& stream_;
  cudnnHandle_t handle_ = nullptr;
};

}  // namespace dtrun::models

#endif
