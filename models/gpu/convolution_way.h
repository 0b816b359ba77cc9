#ifndef DTRUN_MODELS_GPU_CONVOLUTION_WAY_H_
#define DTRUN_MODELS_GPU_CONVOLUTION_WAY_H_

#include <memory>
#include <string>
#include <vector>

#include "models/gpu/convolution.h"
#include "models/gpu/cudnn.h"

namespace dtrun::models {

/// One of the three computations of a convolution.
enum class Direction {
  kForward,  ///< computes the output from the input and the filters
  kFilters,  ///< computes the filters' gradient from the input and the output's gradient
  kInput,    ///< computes the input's gradient from the filters and the output's gradient
};

/// The input, the filters and the output, or their gradients. A direction writes one of the tensors
/// and reads the other two.
struct ConvolutionTensors {
  void* input = nullptr;
  void* filters = nullptr;
  void* output = nullptr;
};

/// The parts that all ways of a convolution share. `handle`, `options` and the workspace's memory
/// outlive the ways.
struct ConvolutionSetting {
  const CudnnHandle& handle;
  const Convolution::Options& options;
  Workspace workspace;
};

/// One way to compute one direction of a convolution. A way is an algorithm of cuDNN's classic
/// functions, or an engine of cuDNN's graph API with settings. One thread at a time.
class ConvolutionWay {
 public:
  virtual ~ConvolutionWay() = default;
  /// A name that differs from the names of all other ways: "classic algorithm 1 math 1". A way has
  /// the same name in every process with the same library and the same kind of device.
  virtual std::string name() const = 0;
  /// Makes the objects that Enqueue needs, which may take long. Throws Error if the way cannot be
  /// used.
  virtual void Prepare() {}
  /// Enqueues the computation. Requires a call of Prepare. Throws Error kSystem if a call of cuDNN
  /// fails. May be captured.
  virtual void Enqueue(const ConvolutionTensors& tensors) = 0;
};

using ConvolutionWays = std::vector<std::unique_ptr<ConvolutionWay>>;

/// Returns ways of cuDNN's classic functions that compute a direction as Convolution promises: with
/// the same bits in every run, with sums in f32 and within the workspace. Ways that cuDNN expects
/// to be fast come first. Returns no ways if the padding is not symmetric. Throws Error kSystem if
/// cuDNN cannot list its ways.
ConvolutionWays ClassicWays(const ConvolutionSetting& setting, Direction direction);
/// The same for cuDNN's graph API. Returns no ways if the library has no graph API.
ConvolutionWays GraphWays(const ConvolutionSetting& setting, Direction direction);

}  // namespace dtrun::models

#endif
