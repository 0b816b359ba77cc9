#ifndef DTRUN_MODELS_GPU_CONVOLUTION_H_
#define DTRUN_MODELS_GPU_CONVOLUTION_H_

#include <cudnn.h>
#include <dtrun/types.h>

#include <cstdint>
#include <string>

#include "gpu/device.h"
#include "gpu/memory.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

// The functions of cuDNN that are called; it is loaded when the first network needs it.
#define DTRUN_FOR_EACH_CUDNN_FUNCTION(X)                                                       \
  X(cudnnCreate)                                                                               \
  X(cudnnDestroy)                                                                              \
  X(cudnnSetStream)                                                                            \
  X(cudnnGetErrorString)                                                                       \
  X(cudnnGetVersion)                                                                           \
  X(cudnnCreateTensorDescriptor)                                                               \
  X(cudnnSetTensor4dDescriptor) X(cudnnDestroyTensorDescriptor) X(cudnnCreateFilterDescriptor) \
      X(cudnnSetFilter4dDescriptor) X(cudnnDestroyFilterDescriptor)                            \
          X(cudnnCreateConvolutionDescriptor) X(cudnnSetConvolution2dDescriptor)               \
              X(cudnnSetConvolutionMathType) X(cudnnDestroyConvolutionDescriptor)              \
                  X(cudnnFindConvolutionForwardAlgorithmEx)                                    \
                      X(cudnnFindConvolutionBackwardDataAlgorithmEx)                           \
                          X(cudnnFindConvolutionBackwardFilterAlgorithmEx)                     \
                              X(cudnnConvolutionForward) X(cudnnConvolutionBackwardData)       \
                                  X(cudnnConvolutionBackwardFilter)

/// NVIDIA's cuDNN 9. Thread-safe.
struct Cudnn {
#define DTRUN_CUDNN_MEMBER(name) decltype(&::name) name = nullptr;
  DTRUN_FOR_EACH_CUDNN_FUNCTION(DTRUN_CUDNN_MEMBER)
#undef DTRUN_CUDNN_MEMBER

  /// Throws Error kUnavailable, with the loader's words, where there is none.
  static const Cudnn& Get();
  /// Throws Error kSystem, "`call` failed: ...", unless cuDNN has done it.
  void Check(cudnnStatus_t status, const char* call) const;
};

/// Memory that libraries compute in, for one call after the other.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
};

enum class Tf32 { kOff, kAllowed };

/// One 3 x 3 convolution without padding, channels last, of a fixed number of rows, computed by
/// cuDNN on its tensor units: forward and both ways back. Of cuDNN's algorithms, those that give
/// the same bits in every run are timed when it is made, and the fastest are used. Enqueues into
/// the stream that it was made with. One thread at a time.
class Convolution {
 public:
  struct Options {
    Shape input, output;
    int rows = 0;
    DType dtype = DType::kF32;  ///< of all tensors; sums are in f32
    Tf32 tf32 = Tf32::kAllowed;
  };

  /// The buffers are written over while algorithms are tried. Throws Error kUnavailable without
  /// cuDNN, or when it has no algorithm for this.
  Convolution(
      const gpu::Device& device, CUstream stream, const Options& options,
      const Workspace& workspace, void* input, void* filters, void* output);
  ~Convolution();
  Convolution(const Convolution&) = delete;
  Convolution& operator=(const Convolution&) = delete;

  void Forward(const void* input, const void* filters, void* output);
  void BackwardFilters(const void* input, const void* output_gradient, void* filters_gradient);
  void BackwardInput(const void* output_gradient, const void* filters, void* input_gradient);

  /// "forward 1 (0.21 ms), filters 1 (0.40 ms), input 1 (0.38 ms)": cuDNN's numbers.
  const std::string& choice() const { return choice_; }

 private:
  void Describe(const Options& options);
  void Choose(const Options& options, void* input, void* filters, void* output);

  const gpu::Device& device_;
  const Cudnn& cudnn_;
  Workspace workspace_;
  cudnnHandle_t handle_ = nullptr;
  cudnnTensorDescriptor_t input_ = nullptr, output_ = nullptr;
  cudnnFilterDescriptor_t filters_ = nullptr;
  // Of each direction, since they may use other units.
  cudnnConvolutionDescriptor_t forward_ = nullptr, to_filters_ = nullptr, to_input_ = nullptr;
  cudnnConvolutionFwdAlgo_t forward_algorithm_{};
  cudnnConvolutionBwdFilterAlgo_t filters_algorithm_{};
  cudnnConvolutionBwdDataAlgo_t input_algorithm_{};
  std::string choice_;
};

}  // namespace dtrun::models

#endif
