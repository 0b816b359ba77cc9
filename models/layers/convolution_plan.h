#ifndef DTRUN_MODELS_LAYERS_CONVOLUTION_PLAN_H_
#define DTRUN_MODELS_LAYERS_CONVOLUTION_PLAN_H_

#include <string>

#include "models/layers/tensor.h"
#include "models/onednn/onednn.h"

namespace dtrun::models {

/// A convolution of a micro-batch, and the format that its input has.
struct ConvolutionProblem {
  int batch = 1;
  Shape input, output;
  int size = 1;  ///< of the square kernel
  dnnl::memory::dims stride, before, after;
  DType dtype = DType::kF32;
  int input_block = 1;  ///< see Tensor
  bool bias = true, relu = false;
  bool input_gradient = true;  ///< whether the way back to the input is needed
};

/// One direction of a convolution: an implementation of oneDNN's. Where its description names
/// another format than the tensors have, the layer reorders around it.
template <typename Description>
struct ConvolutionWay {
  Description description;
  std::string implementation;  ///< oneDNN's name for it
  double cost = 0;             ///< clock cycles of one core per micro-batch, estimated
};

struct ConvolutionPlan {
  int output_block = 1;  ///< format of the output
  ConvolutionWay<onednn::ConvolutionForward> forward;
  bool fuses_relu = false;  ///< else the layer applies it
  ConvolutionWay<onednn::ConvolutionBackwardData> backward_data;
  /// Without a description the layer uses the kernel of `cpu_kernels.h`.
  ConvolutionWay<onednn::ConvolutionBackwardWeights> backward_weights;
};

/// Chooses the output's format and an implementation for each direction. oneDNN's own choice for
/// the forward direction stands if every direction then runs at the speed of the machine's
/// instruction set. Otherwise all formats are compared by an estimate of their cost. The choice
/// depends on the problem, on oneDNN and its instruction set alone, never on a clock. Throws Error
/// kUnavailable when oneDNN has no implementation of a direction.
ConvolutionPlan PlanConvolution(const dnnl::engine& engine, const ConvolutionProblem& problem);

/// What PlanConvolution calls the weight gradient kernel of cpu_kernels.h.
inline constexpr char kOwnWeightGradient[] = "dtrun:few_channels";

/// Whether oneDNN's name for an implementation says that it is not made for speed: "ref:any",
/// "simple:any".
bool IsReference(const std::string& implementation);

}  // namespace dtrun::models

#endif
