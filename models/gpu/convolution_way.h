#ifndef DTRUN_MODELS_GPU_CONVOLUTION_WAY_H_
#define DTRUN_MODELS_GPU_CONVOLUTION_WAY_H_

#include <memory>
#include <string>
#include <vector>

#include "models/gpu/convolution.h"
#include "models/gpu/cudnn.h"

namespace dtrun::models {

/// What a convolution computes.
enum class Direction {
  kForward,  ///< the output, of input and filters
  kFilters,  ///< the filters' gradient, of the input and the output's gradient
  kInput,    ///< the input's gradient, of the filters and the output's gradient
};

/// Input, filters and output or their gradients: one of them is written, the others read.
struct ConvolutionTensors {
  void* input = nullptr;
  void* filters = nullptr;
  void* output = nullptr;
};

/// What all ways of a convolution have in common. They outlive neither.
struct ConvolutionSetting {
  const CudnnHandle& handle;
  const Convolution::Options& options;
  Workspace workspace;
};

/// One way to compute one direction of a convolution: an algorithm of cuDNN's classic functions, or
/// an engine of its graph API with its settings. One thread at a time.
class ConvolutionWay {
 public:
  virtual ~ConvolutionWay() = default;
  /// Tells it from all others, in each process that has the same library and the same kind of
  /// device: "classic algorithm 1".
  virtual std::string name() const = 0;
  /// Makes what Enqueue needs, which may take long. Throws Error when it cannot be used after all.
  virtual void Prepare() {}
  /// After Prepare. Throws Error kSystem when cuDNN refuses. May be captured.
  virtual void Enqueue(const ConvolutionTensors& tensors) = 0;
};

using ConvolutionWays = std::vector<std::unique_ptr<ConvolutionWay>>;

/// Ways that compute what Convolution promises: the same bits in every run, with sums in f32 and
/// within the workspace, in the order in which cuDNN expects them to be fast. Throw Error kSystem
/// when cuDNN cannot say.
ConvolutionWays ClassicWays(const ConvolutionSetting& setting, Direction direction);
/// None of a library without the graph API.
ConvolutionWays GraphWays(const ConvolutionSetting& setting, Direction direction);

}  // namespace dtrun::models

#endif
