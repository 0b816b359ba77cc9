#ifndef DTRUN_MODELS_LAYERS_CONVOLUTION_PLAN_H_
#define DTRUN_MODELS_LAYERS_CONVOLUTION_PLAN_H_

#include <string>

#include "models/layers/tensor.h"
#include "models/onednn/onednn.h"

namespace dtrun::models {

/// A convolution of a micro-batch, and the format of its input.
struct ConvolutionProblem {
  int batch = 1;
  Shape input, output;
  int size = 1;  ///< of the square kernel
  dnnl::memory::dims stride, before, after;
  DType dtype = DType::kF32;
  int input_block = 1;  ///< see Tensor
  bool bias = true, relu = false;
  bool input_gradient = true;  ///< whether the gradient of the input is needed
};

/// oneDNN's implementation of one direction of a convolution. If its formats differ from the
/// tensors' formats, the layer reorders before and after it.
template <typename Description>
struct ConvolutionWay {
  Description description;
  std::string implementation;  ///< oneDNN's name
  double cost = 0;             ///< estimated clock cycles of one core per micro-batch
};

struct ConvolutionPlan {
  int output_block = 1;  ///< format of the output
  ConvolutionWay<onednn::ConvolutionForward> forward;
  bool fuses_relu = false;  ///< false: the layer applies the ReLU itself
  ConvolutionWay<onednn::ConvolutionBackwardData> backward_data;
  /// If the description is empty, the layer uses the kernel of `cpu_kernels.h`.
  ConvolutionWay<onednn::ConvolutionBackwardWeights> backward_weights;
};

/// Chooses the format of the output and an implementation for each direction. Keeps oneDNN's own
/// choice for the forward direction if all directions then run at the speed of the machine's
/// instruction set. Otherwise compares the estimated costs of all formats. The choice depends only
/// on the problem, on oneDNN and on its instruction set; it never depends on measured times. Throws
/// Error kUnavailable if oneDNN has no implementation of a direction.
ConvolutionPlan PlanConvolution(const dnnl::engine& engine, const ConvolutionProblem& problem);

/// PlanConvolution's name for the weight gradient kernel of cpu_kernels.h.
inline constexpr char kOwnWeightGradient[] = "dtrun:few_channels";

/// True if oneDNN's name marks a reference implementation, which is slow: "ref:any", "simple:any".
bool IsReference(const std::string& implementation);

}  // namespace dtrun::models

#endif
