// The classic functions of libcudnn.so.9 that dtrun calls: convolutions, channels last. Each
// direction has three algorithms. The first algorithm is not deterministic, and the second
// algorithm needs more memory than exists. Both compute wrong results, so a caller that does not
// check them fails.

#include "tests/gpu_simulator/convolution_math.h"
#include "tests/gpu_simulator/cudnn_handle.h"

using dtrun::gpu_simulator::ConvolutionCall;
using dtrun::gpu_simulator::ConvolutionKind;
using dtrun::gpu_simulator::ConvolutionTensor;
using dtrun::gpu_simulator::ConvolutionWindows;
using dtrun::gpu_simulator::CudaTypeOf;
using dtrun::gpu_simulator::EnqueueFor;

struct cudnnTensorStruct {
  ConvolutionTensor tensor;
};
struct cudnnFilterStruct {
  ConvolutionTensor tensor;
};
struct cudnnConvolutionStruct {
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  ConvolutionWindows windows;
};

namespace {

constexpr size_t kTooLarge = size_t{1} << 50;

// Proposes three algorithms. Only `right` can be used.
template <typename Proposed, typename Algorithm>
cudnnStatus_t Propose(
    const ConvolutionCall& call, cudnnConvolutionDescriptor_t convolution, Algorithm right,
    int requested, int* returned, Proposed* proposed) {
  if (!call.Fits()) return CUDNN_STATUS_BAD_PARAM;
  constexpr int kAll = 3;
  *returned = requested < kAll ? requested : kAll;
  for (int i = 0; i < *returned; ++i) {
    proposed[i] = {};
    proposed[i].algo = i < 2 ? Algorithm(right + 1 + i) : right;
    proposed[i].status = CUDNN_STATUS_SUCCESS;
    proposed[i].time = -1;
    proposed[i].memory = i == 1 ? kTooLarge : 0;
    proposed[i].determinism = i == 0 ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
    proposed[i].mathType = convolution->math;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t Enqueue(cudnnHandle_t handle, const ConvolutionCall& call, bool is_right) {
  if (!call.Fits()) return CUDNN_STATUS_BAD_PARAM;
  return EnqueueFor(
      handle, [call, is_right] { is_right ? call.Compute() : call.ComputeByChance(); });
}

constexpr auto kForward = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
constexpr auto kFilters = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
constexpr auto kInput = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;

}  // namespace

EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = reinterpret_cast<CUstream>(stream);
  return CUDNN_STATUS_SUCCESS;
}
EXPORT const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM"
                                          : "an error of simulated cuDNN";
}

EXPORT cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) {
  *tensor = new cudnnTensorStruct;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetTensor4dDescriptor(
    cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format, cudnnDataType_t type, int n, int c,
    int h, int w) {
  if (format != CUDNN_TENSOR_NHWC) return CUDNN_STATUS_NOT_SUPPORTED;
  tensor->tensor = {CudaTypeOf(type), n, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
  delete tensor;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter) {
  *filter = new cudnnFilterStruct;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetFilter4dDescriptor(
    cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int k, int c,
    int h, int w) {
  if (format != CUDNN_TENSOR_NHWC) return CUDNN_STATUS_NOT_SUPPORTED;
  filter->tensor = {CudaTypeOf(type), k, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) {
  delete filter;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convolution) {
  *convolution = new cudnnConvolutionStruct;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetConvolution2dDescriptor(
    cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w, int u, int v, int dilation_h,
    int dilation_w, cudnnConvolutionMode_t mode, cudnnDataType_t type) {
  const ConvolutionWindows windows{{pad_h, pad_w}, {pad_h, pad_w}, {u, v}};
  if (!windows.IsValid()) return CUDNN_STATUS_BAD_PARAM;
  const bool plain = dilation_h == 1 && dilation_w == 1 && mode == CUDNN_CROSS_CORRELATION &&
                     type == CUDNN_DATA_FLOAT;
  if (!plain) return CUDNN_STATUS_NOT_SUPPORTED;
  convolution->windows = windows;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t
cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
  convolution->math = math;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
  delete convolution;
  return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t y,
    const int requested, int* returned, cudnnConvolutionFwdAlgoPerf_t* proposed) {
  const ConvolutionCall call{
      ConvolutionKind::kForward, x->tensor, w->tensor, y->tensor, convolution->windows};
  return Propose(call, convolution, kForward, requested, returned, proposed);
}
EXPORT cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t convolution, const cudnnFilterDescriptor_t w,
    const int requested, int* returned, cudnnConvolutionBwdFilterAlgoPerf_t* proposed) {
  const ConvolutionCall call{
      ConvolutionKind::kFilters, x->tensor, w->tensor, y->tensor, convolution->windows};
  return Propose(call, convolution, kFilters, requested, returned, proposed);
}
EXPORT cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t x,
    const int requested, int* returned, cudnnConvolutionBwdDataAlgoPerf_t* proposed) {
  const ConvolutionCall call{
      ConvolutionKind::kInput, x->tensor, w->tensor, y->tensor, convolution->windows};
  return Propose(call, convolution, kInput, requested, returned, proposed);
}

EXPORT cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t handle, const void*, const cudnnTensorDescriptor_t x_shape, const void* x,
    const cudnnFilterDescriptor_t w_shape, const void* w,
    const cudnnConvolutionDescriptor_t convolution, cudnnConvolutionFwdAlgo_t algorithm, void*,
    size_t, const void*, const cudnnTensorDescriptor_t y_shape, void* y) {
  const ConvolutionCall call{
      ConvolutionKind::kForward, x_shape->tensor,      w_shape->tensor,      y_shape->tensor,
      convolution->windows,      const_cast<void*>(x), const_cast<void*>(w), y};
  return Enqueue(handle, call, algorithm == kForward);
}
EXPORT cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void*, const cudnnTensorDescriptor_t x_shape, const void* x,
    const cudnnTensorDescriptor_t y_shape, const void* y,
    const cudnnConvolutionDescriptor_t convolution, cudnnConvolutionBwdFilterAlgo_t algorithm,
    void*, size_t, const void*, const cudnnFilterDescriptor_t w_shape, void* w) {
  const ConvolutionCall call{
      ConvolutionKind::kFilters,
      x_shape->tensor,
      w_shape->tensor,
      y_shape->tensor,
      convolution->windows,
      const_cast<void*>(x),
      w,
      const_cast<void*>(y)};
  return Enqueue(handle, call, algorithm == kFilters);
}
EXPORT cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void*, const cudnnFilterDescriptor_t w_shape, const void* w,
    const cudnnTensorDescriptor_t y_shape, const void* y,
    const cudnnConvolutionDescriptor_t convolution, cudnnConvolutionBwdDataAlgo_t algorithm, void*,
    size_t, const void*, const cudnnTensorDescriptor_t x_shape, void* x) {
  const ConvolutionCall call{ConvolutionKind::kInput, x_shape->tensor,      w_shape->tensor,
                             y_shape->tensor,         convolution->windows, x,
                             const_cast<void*>(w),    const_cast<void*>(y)};
  return Enqueue(handle, call, algorithm == kInput);
}
