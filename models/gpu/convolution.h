#ifndef DTRUN_MODELS_GPU_CONVOLUTION_H_
#define DTRUN_MODELS_GPU_CONVOLUTION_H_

#include <dtrun/types.h>

#include <cstddef>
#include <memory>
#include <string>

#include "gpu/stream.h"
#include "models/gpu/trial.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

class ConvolutionWay;
class CudnnHandle;
struct ConvolutionTensors;
enum class Direction;

/// Memory that libraries compute in, for one call after the other.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
};

enum class Tf32 { kOff, kAllowed };

/// One 3 x 3 convolution without padding, channels last, of a fixed number of rows, computed by
/// cuDNN on its tensor units: forward and both ways back. Each goes the fastest way there is, of
/// cuDNN's graph API or of its classic functions, among those that give the same bits in every run.
///
/// Which one that is, is timed by the first convolution of this kind (shapes, rows, dtype, TF32,
/// workspace) in the process on this kind of GPU; those that are made later do what it does, and so
/// compute the same bits. Another process may choose otherwise, but with Selection::kFirst.
///
/// Enqueues into the stream that it was made with; what it enqueues may be captured. One thread at
/// a time; several may be made at once by several threads.
class Convolution {
 public:
  struct Options {
    Shape input, output;
    int rows = 0;
    DType dtype = DType::kF32;  ///< of all tensors; sums are in f32
    Tf32 tf32 = Tf32::kAllowed;
    Selection selection = Selection::kFastest;
  };

  /// Memory is aligned to 16 bytes at least, here and in the calls. The buffers are written over
  /// while ways are tried. Throws Error kUnavailable without cuDNN, or when it has no way for this.
  Convolution(
      const gpu::Stream& stream, const Options& options, const Workspace& workspace, void* input,
      void* filters, void* output);
  ~Convolution();
  Convolution(const Convolution&) = delete;
  Convolution& operator=(const Convolution&) = delete;

  void Forward(const void* input, const void* filters, void* output);
  void BackwardFilters(const void* input, const void* output_gradient, void* filters_gradient);
  void BackwardInput(const void* output_gradient, const void* filters, void* input_gradient);

  /// "forward graph engine 62 2=4 13=0 (0.21 ms), filters classic algorithm 1 (0.40 ms), ...":
  /// cuDNN's numbers of engines and their knobs, and of algorithms.
  const std::string& choice() const { return choice_; }

 private:
  std::unique_ptr<ConvolutionWay> Choose(Direction direction, const ConvolutionTensors& tensors);

  Options options_;
  Workspace workspace_;
  std::string choice_;
  std::unique_ptr<CudnnHandle> handle_;
  std::unique_ptr<ConvolutionWay> forward_, to_filters_, to_input_;
};

}  // namespace dtrun::models

#endif
