#include "models/gpu/convolution.h"

#include <dtrun/error.h>

#include "gpu/driver.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

cudnnDataType_t TypeOf(DType dtype) {
  if (dtype == DType::kBF16) return CUDNN_DATA_BFLOAT16;
  return dtype == DType::kF16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

cudnnMathType_t MathOf(const Convolution::Options& options) {
  if (options.dtype != DType::kF32) return CUDNN_TENSOR_OP_MATH;
  return options.tf32 == Tf32::kAllowed ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}

constexpr int kMostAlgorithms = 16;

// The fastest of those tried, which come in that order, that may be used.
template <typename Tried>
const Tried& Fastest(
    const Tried* tried, int count, const Convolution::Options& options, const char* what) {
  for (int i = 0; i < count; ++i) {
    if (tried[i].status == CUDNN_STATUS_SUCCESS && tried[i].determinism == CUDNN_DETERMINISTIC)
      return tried[i];
  }
  throw Error(
      ErrorCode::kUnavailable,
      Text(
          "cuDNN has no deterministic algorithm for ", what, " of a convolution from ",
          ToString(options.input), " to ", ToString(options.output), " in ", NameOf(options.dtype),
          ", ", options.rows, " rows"));
}

}  // namespace

const Cudnn& Cudnn::Get() {
  static const Cudnn loaded = [] {
    const gpu::LoadedLibrary library({"libcudnn.so.9", "libcudnn.so"});
    Cudnn functions;
#define DTRUN_FIND_CUDNN_FUNCTION(name) \
  functions.name = library.Find<std::remove_pointer_t<decltype(functions.name)>>(#name);
    DTRUN_FOR_EACH_CUDNN_FUNCTION(DTRUN_FIND_CUDNN_FUNCTION)
#undef DTRUN_FIND_CUDNN_FUNCTION
    return functions;
  }();
  return loaded;
}

void Cudnn::Check(cudnnStatus_t status, const char* call) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(ErrorCode::kSystem, Text(call, " failed: ", cudnnGetErrorString(status)));
}

Convolution::Convolution(
    const gpu::Device& device, CUstream stream, const Options& options, const Workspace& workspace,
    void* input, void* filters, void* output)
    : device_(device), cudnn_(Cudnn::Get()), workspace_(workspace) {
  const gpu::DeviceScope scope(device_);
  cudnn_.Check(cudnn_.cudnnCreate(&handle_), "cudnnCreate");
  cudnn_.Check(
      cudnn_.cudnnSetStream(handle_, reinterpret_cast<cudaStream_t>(stream)), "cudnnSetStream");
  Describe(options);
  Choose(options, input, filters, output);
}

Convolution::~Convolution() {
  const gpu::DeviceScope scope(device_);
  for (const cudnnConvolutionDescriptor_t each : {forward_, to_filters_, to_input_})
    if (each != nullptr) cudnn_.cudnnDestroyConvolutionDescriptor(each);
  if (filters_ != nullptr) cudnn_.cudnnDestroyFilterDescriptor(filters_);
  for (const cudnnTensorDescriptor_t each : {input_, output_})
    if (each != nullptr) cudnn_.cudnnDestroyTensorDescriptor(each);
  if (handle_ != nullptr) cudnn_.cudnnDestroy(handle_);
}

void Convolution::Describe(const Options& options) {
  const cudnnDataType_t type = TypeOf(options.dtype);
  const auto describe = [&](cudnnTensorDescriptor_t* tensor, const Shape& shape) {
    cudnn_.Check(cudnn_.cudnnCreateTensorDescriptor(tensor), "cudnnCreateTensorDescriptor");
    cudnn_.Check(
        cudnn_.cudnnSetTensor4dDescriptor(
            *tensor, CUDNN_TENSOR_NHWC, type, options.rows, shape.channels, shape.height,
            shape.width),
        "cudnnSetTensor4dDescriptor");
  };
  describe(&input_, options.input);
  describe(&output_, options.output);
  cudnn_.Check(cudnn_.cudnnCreateFilterDescriptor(&filters_), "cudnnCreateFilterDescriptor");
  cudnn_.Check(
      cudnn_.cudnnSetFilter4dDescriptor(
          filters_, type, CUDNN_TENSOR_NHWC, options.output.channels, options.input.channels, 3, 3),
      "cudnnSetFilter4dDescriptor");
  for (cudnnConvolutionDescriptor_t* each : {&forward_, &to_filters_, &to_input_}) {
    cudnn_.Check(cudnn_.cudnnCreateConvolutionDescriptor(each), "cudnnCreateConvolutionDescriptor");
    cudnn_.Check(
        cudnn_.cudnnSetConvolution2dDescriptor(
            *each, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
        "cudnnSetConvolution2dDescriptor");
    cudnn_.Check(
        cudnn_.cudnnSetConvolutionMathType(*each, MathOf(options)), "cudnnSetConvolutionMathType");
  }
}

void Convolution::Choose(const Options& options, void* input, void* filters, void* output) {
  int count = 0;
  cudnnConvolutionFwdAlgoPerf_t forward[kMostAlgorithms];
  cudnn_.Check(
      cudnn_.cudnnFindConvolutionForwardAlgorithmEx(
          handle_, input_, input, filters_, filters, forward_, output_, output, kMostAlgorithms,
          &count, forward, workspace_.data, workspace_.bytes),
      "cudnnFindConvolutionForwardAlgorithmEx");
  const auto& best_forward = Fastest(forward, count, options, "the outputs");
  cudnnConvolutionBwdFilterAlgoPerf_t to_filters[kMostAlgorithms];
  cudnn_.Check(
      cudnn_.cudnnFindConvolutionBackwardFilterAlgorithmEx(
          handle_, input_, input, output_, output, to_filters_, filters_, filters, kMostAlgorithms,
          &count, to_filters, workspace_.data, workspace_.bytes),
      "cudnnFindConvolutionBackwardFilterAlgorithmEx");
  const auto& best_filters = Fastest(to_filters, count, options, "the filters' gradient");
  cudnnConvolutionBwdDataAlgoPerf_t to_input[kMostAlgorithms];
  cudnn_.Check(
      cudnn_.cudnnFindConvolutionBackwardDataAlgorithmEx(
          handle_, filters_, filters, output_, output, to_input_, input_, input, kMostAlgorithms,
          &count, to_input, workspace_.data, workspace_.bytes),
      "cudnnFindConvolutionBackwardDataAlgorithmEx");
  const auto& best_input = Fastest(to_input, count, options, "the inputs' gradient");
  forward_algorithm_ = best_forward.algo;
  filters_algorithm_ = best_filters.algo;
  input_algorithm_ = best_input.algo;
  // What was found for multiply-adds of f32 may be called by another name, but is to remain that.
  const auto use = [&](cudnnConvolutionDescriptor_t descriptor, cudnnMathType_t found) {
    const cudnnMathType_t math = MathOf(options) == CUDNN_FMA_MATH ? CUDNN_FMA_MATH : found;
    cudnn_.Check(
        cudnn_.cudnnSetConvolutionMathType(descriptor, math), "cudnnSetConvolutionMathType");
  };
  use(forward_, best_forward.mathType);
  use(to_filters_, best_filters.mathType);
  use(to_input_, best_input.mathType);
  const auto name = [](const char* what, const auto& best) {
    return Text(what, " ", static_cast<int>(best.algo), " (", best.time, " ms)");
  };
  choice_ = Text(
      name("forward", best_forward), ", ", name("filters", best_filters), ", ",
      name("input", best_input));
}

namespace {
constexpr float kOne = 1, kZero = 0;
}  // namespace

void Convolution::Forward(const void* input, const void* filters, void* output) {
  const gpu::DeviceScope scope(device_);
  cudnn_.Check(
      cudnn_.cudnnConvolutionForward(
          handle_, &kOne, input_, input, filters_, filters, forward_, forward_algorithm_,
          workspace_.data, workspace_.bytes, &kZero, output_, output),
      "cudnnConvolutionForward");
}

void Convolution::BackwardFilters(
    const void* input, const void* output_gradient, void* filters_gradient) {
  const gpu::DeviceScope scope(device_);
  cudnn_.Check(
      cudnn_.cudnnConvolutionBackwardFilter(
          handle_, &kOne, input_, input, output_, output_gradient, to_filters_, filters_algorithm_,
          workspace_.data, workspace_.bytes, &kZero, filters_, filters_gradient),
      "cudnnConvolutionBackwardFilter");
}

void Convolution::BackwardInput(
    const void* output_gradient, const void* filters, void* input_gradient) {
  const gpu::DeviceScope scope(device_);
  cudnn_.Check(
      cudnn_.cudnnConvolutionBackwardData(
          handle_, &kOne, filters_, filters, output_, output_gradient, to_input_, input_algorithm_,
          workspace_.data, workspace_.bytes, &kZero, input_, input_gradient),
      "cudnnConvolutionBackwardData");
}

}  // namespace dtrun::models
