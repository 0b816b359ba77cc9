// The functions of libcudnn.so.9 that dtrun calls: convolutions of stride 1 without padding,
// channels last, by their definition, with sums in f64. Of algorithms there are two for each
// direction: the first would not give the same bits in every run, so who wants that has to look.

#include <cudnn.h>

#include <vector>

#include "tests/gpu_simulator/host_math.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using dtrun::gpu_simulator::EnqueueOnStream;
using dtrun::gpu_simulator::LoadValue;
using dtrun::gpu_simulator::StoreValue;

struct cudnnContext {
  CUstream stream = nullptr;
};
struct cudnnTensorStruct {
  cudaDataType_t type = CUDA_R_32F;
  int n = 0, c = 0, h = 0, w = 0;
};
struct cudnnFilterStruct {
  cudaDataType_t type = CUDA_R_32F;
  int k = 0, c = 0, h = 0, w = 0;
};
struct cudnnConvolutionStruct {
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace {

cudaDataType_t TypeOf(cudnnDataType_t type) {
  if (type == CUDNN_DATA_BFLOAT16) return CUDA_R_16BF;
  return type == CUDNN_DATA_HALF ? CUDA_R_16F : CUDA_R_32F;
}

// One convolution's tensors, and a visit of all products that it is made of.
struct Geometry {
  cudnnTensorStruct x, y;
  cudnnFilterStruct w;

  bool Fits() const {
    return x.n == y.n && x.c == w.c && y.c == w.k && y.h == x.h - w.h + 1 && y.w == x.w - w.w + 1 &&
           x.type == w.type && x.type == y.type;
  }
  uint64_t X(int n, int h, int at, int c) const {
    return ((uint64_t(n) * uint64_t(x.h) + uint64_t(h)) * uint64_t(x.w) + uint64_t(at)) *
               uint64_t(x.c) +
           uint64_t(c);
  }
  uint64_t Y(int n, int h, int at, int k) const {
    return ((uint64_t(n) * uint64_t(y.h) + uint64_t(h)) * uint64_t(y.w) + uint64_t(at)) *
               uint64_t(y.c) +
           uint64_t(k);
  }
  uint64_t W(int k, int r, int s) const {
    return ((uint64_t(k) * uint64_t(w.h) + uint64_t(r)) * uint64_t(w.w) + uint64_t(s)) *
           uint64_t(w.c);
  }
  uint64_t XCount() const { return X(x.n, 0, 0, 0); }
  uint64_t YCount() const { return Y(y.n, 0, 0, 0); }
  uint64_t WCount() const { return W(w.k, 0, 0); }

  // visit(first of x, of w, of y): for the channels of x and w that follow.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (int n = 0; n < y.n; ++n)
      for (int h = 0; h < y.h; ++h)
        for (int at = 0; at < y.w; ++at)
          for (int k = 0; k < y.c; ++k)
            for (int r = 0; r < w.h; ++r)
              for (int s = 0; s < w.w; ++s)
                visit(X(n, h + r, at + s, 0), W(k, r, s), Y(n, h, at, k));
  }
};

std::vector<double> Values(const void* from, uint64_t count, cudaDataType_t type) {
  std::vector<double> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = LoadValue(from, i, type);
  return values;
}

void Store(const std::vector<double>& values, void* to, cudaDataType_t type) {
  for (uint64_t i = 0; i < values.size(); ++i) StoreValue(values[i], to, i, type);
}

cudnnStatus_t Enqueue(cudnnHandle_t handle, std::function<void()> task) {
  return EnqueueOnStream(handle->stream, std::move(task)) ? CUDNN_STATUS_SUCCESS
                                                          : CUDNN_STATUS_EXECUTION_FAILED;
}

template <typename Tried, typename Algorithm>
cudnnStatus_t Propose(
    Algorithm algorithm, cudnnConvolutionDescriptor_t convolution, int requested, int* returned,
    Tried* tried) {
  *returned = requested < 2 ? requested : 2;
  for (int i = 0; i < *returned; ++i) {
    tried[i] = {};
    tried[i].algo = i == 0 ? Algorithm{} : algorithm;
    tried[i].status = CUDNN_STATUS_SUCCESS;
    tried[i].time = 0.5f + static_cast<float>(i);
    tried[i].determinism = i == 0 ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
    tried[i].mathType = convolution->math;
  }
  return CUDNN_STATUS_SUCCESS;
}

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
EXPORT size_t cudnnGetVersion(void) { return CUDNN_VERSION; }

EXPORT cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) {
  *tensor = new cudnnTensorStruct;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetTensor4dDescriptor(
    cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format, cudnnDataType_t type, int n, int c,
    int h, int w) {
  if (format != CUDNN_TENSOR_NHWC) return CUDNN_STATUS_NOT_SUPPORTED;
  *tensor = {TypeOf(type), n, c, h, w};
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
  *filter = {TypeOf(type), k, c, h, w};
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
    cudnnConvolutionDescriptor_t, int pad_h, int pad_w, int u, int v, int dilation_h,
    int dilation_w, cudnnConvolutionMode_t mode, cudnnDataType_t type) {
  const bool plain = pad_h == 0 && pad_w == 0 && u == 1 && v == 1 && dilation_h == 1 &&
                     dilation_w == 1 && mode == CUDNN_CROSS_CORRELATION && type == CUDNN_DATA_FLOAT;
  return plain ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
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

EXPORT cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const void*, const cudnnFilterDescriptor_t w,
    const void*, const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t y,
    void*, const int requested, int* returned, cudnnConvolutionFwdAlgoPerf_t* tried, void*,
    size_t) {
  if (!Geometry{*x, *y, *w}.Fits()) return CUDNN_STATUS_BAD_PARAM;
  return Propose(
      CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, convolution, requested, returned, tried);
}
EXPORT cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
    cudnnHandle_t, const cudnnFilterDescriptor_t w, const void*, const cudnnTensorDescriptor_t y,
    const void*, const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t x,
    void*, const int requested, int* returned, cudnnConvolutionBwdDataAlgoPerf_t* tried, void*,
    size_t) {
  if (!Geometry{*x, *y, *w}.Fits()) return CUDNN_STATUS_BAD_PARAM;
  return Propose(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, convolution, requested, returned, tried);
}
EXPORT cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const void*, const cudnnTensorDescriptor_t y,
    const void*, const cudnnConvolutionDescriptor_t convolution, const cudnnFilterDescriptor_t w,
    void*, const int requested, int* returned, cudnnConvolutionBwdFilterAlgoPerf_t* tried, void*,
    size_t) {
  if (!Geometry{*x, *y, *w}.Fits()) return CUDNN_STATUS_BAD_PARAM;
  return Propose(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, convolution, requested, returned, tried);
}

EXPORT cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t handle, const void*, const cudnnTensorDescriptor_t x_shape, const void* x,
    const cudnnFilterDescriptor_t w_shape, const void* w, const cudnnConvolutionDescriptor_t,
    cudnnConvolutionFwdAlgo_t, void*, size_t, const void*, const cudnnTensorDescriptor_t y_shape,
    void* y) {
  const Geometry geometry{*x_shape, *y_shape, *w_shape};
  if (!geometry.Fits()) return CUDNN_STATUS_BAD_PARAM;
  return Enqueue(handle, [=] {
    const cudaDataType_t type = geometry.x.type;
    const auto inputs = Values(x, geometry.XCount(), type);
    const auto filters = Values(w, geometry.WCount(), type);
    std::vector<double> outputs(geometry.YCount());
    geometry.ForEach([&](uint64_t at_x, uint64_t at_w, uint64_t at_y) {
      for (uint64_t c = 0; c < uint64_t(geometry.x.c); ++c)
        outputs[at_y] += inputs[at_x + c] * filters[at_w + c];
    });
    Store(outputs, y, type);
  });
}

EXPORT cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void*, const cudnnFilterDescriptor_t w_shape, const void* w,
    const cudnnTensorDescriptor_t y_shape, const void* y, const cudnnConvolutionDescriptor_t,
    cudnnConvolutionBwdDataAlgo_t, void*, size_t, const void*,
    const cudnnTensorDescriptor_t x_shape, void* x) {
  const Geometry geometry{*x_shape, *y_shape, *w_shape};
  if (!geometry.Fits()) return CUDNN_STATUS_BAD_PARAM;
  return Enqueue(handle, [=] {
    const cudaDataType_t type = geometry.x.type;
    const auto outputs = Values(y, geometry.YCount(), type);
    const auto filters = Values(w, geometry.WCount(), type);
    std::vector<double> inputs(geometry.XCount());
    geometry.ForEach([&](uint64_t at_x, uint64_t at_w, uint64_t at_y) {
      for (uint64_t c = 0; c < uint64_t(geometry.x.c); ++c)
        inputs[at_x + c] += outputs[at_y] * filters[at_w + c];
    });
    Store(inputs, x, type);
  });
}

EXPORT cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void*, const cudnnTensorDescriptor_t x_shape, const void* x,
    const cudnnTensorDescriptor_t y_shape, const void* y, const cudnnConvolutionDescriptor_t,
    cudnnConvolutionBwdFilterAlgo_t, void*, size_t, const void*,
    const cudnnFilterDescriptor_t w_shape, void* w) {
  const Geometry geometry{*x_shape, *y_shape, *w_shape};
  if (!geometry.Fits()) return CUDNN_STATUS_BAD_PARAM;
  return Enqueue(handle, [=] {
    const cudaDataType_t type = geometry.x.type;
    const auto inputs = Values(x, geometry.XCount(), type);
    const auto outputs = Values(y, geometry.YCount(), type);
    std::vector<double> filters(geometry.WCount());
    geometry.ForEach([&](uint64_t at_x, uint64_t at_w, uint64_t at_y) {
      for (uint64_t c = 0; c < uint64_t(geometry.x.c); ++c)
        filters[at_w + c] += inputs[at_x + c] * outputs[at_y];
    });
    Store(filters, w, type);
  });
}
