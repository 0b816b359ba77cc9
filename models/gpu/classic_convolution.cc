// Ways of cuDNN's classic functions, which have a fixed set of algorithms for each direction.
// Propose asks cuDNN for the expected speed, the workspace and the determinism of each algorithm.
// WaysOf keeps the first deterministic algorithms that fit into the workspace.

#include <cstddef>
#include <utility>

#include "models/gpu/convolution.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

// The most ways per direction. Propose returns algorithms that cuDNN expects to be fast first, so
// only the first usable ones are worth a trial.
constexpr size_t kMostWays = 3;

cudnnMathType_t MathOf(const Convolution::Options& options) {
  if (options.dtype != DType::kF32) return CUDNN_TENSOR_OP_MATH;
  return options.tf32 == Tf32::kAllowed ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}

// The cuDNN descriptors of a convolution.
class Shapes {
 public:
  explicit Shapes(const Convolution::Options& options) {
    const cudnnDataType_t type = CudnnTypeOf(options.dtype);
    const auto describe = [&](cudnnTensorDescriptor_t* tensor, const Shape& shape) {
      cudnn_.Check(cudnn_.cudnnCreateTensorDescriptor(tensor), "cudnnCreateTensorDescriptor");
      cudnn_.Check(
          cudnn_.cudnnSetTensor4dDescriptor(
              *tensor, CUDNN_TENSOR_NHWC, type, options.rows, shape.channels, shape.height,
              shape.width),
          "cudnnSetTensor4dDescriptor");
    };
    describe(&input, options.input);
    describe(&output, options.output);
    cudnn_.Check(cudnn_.cudnnCreateFilterDescriptor(&filters), "cudnnCreateFilterDescriptor");
    cudnn_.Check(
        cudnn_.cudnnSetFilter4dDescriptor(
            filters, type, CUDNN_TENSOR_NHWC, options.output.channels, options.input.channels,
            options.size, options.size),
        "cudnnSetFilter4dDescriptor");
    cudnn_.Check(
        cudnn_.cudnnCreateConvolutionDescriptor(&convolution), "cudnnCreateConvolutionDescriptor");
    cudnn_.Check(
        cudnn_.cudnnSetConvolution2dDescriptor(
            convolution, options.padding.rows, options.padding.columns, options.stride,
            options.stride, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
        "cudnnSetConvolution2dDescriptor");
    Use(MathOf(options));
  }
  ~Shapes() {
    if (convolution != nullptr) cudnn_.cudnnDestroyConvolutionDescriptor(convolution);
    if (filters != nullptr) cudnn_.cudnnDestroyFilterDescriptor(filters);
    for (const cudnnTensorDescriptor_t each : {input, output})
      if (each != nullptr) cudnn_.cudnnDestroyTensorDescriptor(each);
  }
  Shapes(const Shapes&) = delete;
  Shapes& operator=(const Shapes&) = delete;

  void Use(cudnnMathType_t math) {
    cudnn_.Check(
        cudnn_.cudnnSetConvolutionMathType(convolution, math), "cudnnSetConvolutionMathType");
  }

  cudnnTensorDescriptor_t input = nullptr, output = nullptr;
  cudnnFilterDescriptor_t filters = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;

 private:
  const Cudnn& cudnn_ = Cudnn::Get();
};

constexpr int kMostProposed = 16;
constexpr float kOne = 1, kZero = 0;

// The cuDNN functions of the three directions. Propose fills `proposed` and `count`.
struct Forward {
  using Proposed = cudnnConvolutionFwdAlgoPerf_t;
  static void Propose(cudnnHandle_t handle, const Shapes& s, int* count, Proposed* proposed) {
    const Cudnn& cudnn = Cudnn::Get();
    cudnn.Check(
        cudnn.cudnnGetConvolutionForwardAlgorithm_v7(
            handle, s.input, s.filters, s.convolution, s.output, kMostProposed, count, proposed),
        "cudnnGetConvolutionForwardAlgorithm_v7");
  }
  static void Compute(
      const ConvolutionSetting& setting, const Shapes& s, const ConvolutionTensors& t,
      cudnnConvolutionFwdAlgo_t algorithm) {
    const Cudnn& cudnn = Cudnn::Get();
    cudnn.Check(
        cudnn.cudnnConvolutionForward(
            setting.handle.get(), &kOne, s.input, t.input, s.filters, t.filters, s.convolution,
            algorithm, setting.workspace.data, setting.workspace.bytes, &kZero, s.output, t.output),
        "cudnnConvolutionForward");
  }
};

struct BackwardFilters {
  using Proposed = cudnnConvolutionBwdFilterAlgoPerf_t;
  static void Propose(cudnnHandle_t handle, const Shapes& s, int* count, Proposed* proposed) {
    const Cudnn& cudnn = Cudnn::Get();
    cudnn.Check(
        cudnn.cudnnGetConvolutionBackwardFilterAlgorithm_v7(
            handle, s.input, s.output, s.convolution, s.filters, kMostProposed, count, proposed),
        "cudnnGetConvolutionBackwardFilterAlgorithm_v7");
  }
  static void Compute(
      const ConvolutionSetting& setting, const Shapes& s, const ConvolutionTensors& t,
      cudnnConvolutionBwdFilterAlgo_t algorithm) {
    const Cudnn& cudnn = Cudnn::Get();
    cudnn.Check(
        cudnn.cudnnConvolutionBackwardFilter(
            setting.handle.get(), &kOne, s.input, t.input, s.output, t.output, s.convolution,
            algorithm, setting.workspace.data, setting.workspace.bytes, &kZero, s.filters,
            t.filters),
        "cudnnConvolutionBackwardFilter");
  }
};

struct BackwardInput {
  using Proposed = cudnnConvolutionBwdDataAlgoPerf_t;
  static void Propose(cudnnHandle_t handle, const Shapes& s, int* count, Proposed* proposed) {
    const Cudnn& cudnn = Cudnn::Get();
    cudnn.Check(
        cudnn.cudnnGetConvolutionBackwardDataAlgorithm_v7(
            handle, s.filters, s.output, s.convolution, s.input, kMostProposed, count, proposed),
        "cudnnGetConvolutionBackwardDataAlgorithm_v7");
  }
  static void Compute(
      const ConvolutionSetting& setting, const Shapes& s, const ConvolutionTensors& t,
      cudnnConvolutionBwdDataAlgo_t algorithm) {
    const Cudnn& cudnn = Cudnn::Get();
    cudnn.Check(
        cudnn.cudnnConvolutionBackwardData(
            setting.handle.get(), &kOne, s.filters, t.filters, s.output, t.output, s.convolution,
            algorithm, setting.workspace.data, setting.workspace.bytes, &kZero, s.input, t.input),
        "cudnnConvolutionBackwardData");
  }
};

template <typename Functions>
class ClassicWay : public ConvolutionWay {
 public:
  ClassicWay(const ConvolutionSetting& setting, const typename Functions::Proposed& proposed)
      : setting_(setting), shapes_(setting.options), algorithm_(proposed.algo) {
    // If the options ask for multiply-adds in f32, the math type stays CUDNN_FMA_MATH, even if
    // cuDNN proposes the algorithm with another math type.
    math_ = MathOf(setting.options) == CUDNN_FMA_MATH ? CUDNN_FMA_MATH : proposed.mathType;
    shapes_.Use(math_);
  }

  std::string name() const override {
    return Text(
        "classic algorithm ", static_cast<int>(algorithm_), " math ", static_cast<int>(math_));
  }

  void Enqueue(const ConvolutionTensors& tensors) override {
    Functions::Compute(setting_, shapes_, tensors, algorithm_);
  }

 private:
  ConvolutionSetting setting_;
  Shapes shapes_;
  decltype(Functions::Proposed::algo) algorithm_;
  cudnnMathType_t math_;
};

template <typename Functions>
ConvolutionWays WaysOf(const ConvolutionSetting& setting) {
  typename Functions::Proposed proposed[kMostProposed];
  int count = 0;
  Functions::Propose(setting.handle.get(), Shapes(setting.options), &count, proposed);
  ConvolutionWays ways;
  for (int i = 0; i < count && ways.size() < kMostWays; ++i) {
    const bool usable = proposed[i].status == CUDNN_STATUS_SUCCESS &&
                        proposed[i].determinism == CUDNN_DETERMINISTIC &&
                        proposed[i].memory <= setting.workspace.bytes;
    if (usable) ways.push_back(std::make_unique<ClassicWay<Functions>>(setting, proposed[i]));
  }
  return ways;
}

}  // namespace

ConvolutionWays ClassicWays(const ConvolutionSetting& setting, Direction direction) {
  switch (direction) {
    case Direction::kForward: return WaysOf<Forward>(setting);
    case Direction::kFilters: return WaysOf<BackwardFilters>(setting);
    case Direction::kInput: return WaysOf<BackwardInput>(setting);
  }
  return {};
}

}  // namespace dtrun::models
