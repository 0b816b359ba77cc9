#ifndef DTRUN_TESTS_GPU_SIMULATOR_CONVOLUTION_MATH_H_
#define DTRUN_TESTS_GPU_SIMULATOR_CONVOLUTION_MATH_H_

#include <library_types.h>

#include <cstdint>

// Convolutions of stride 1 without padding, by their definition, with sums in f64: what simulated
// cuDNN computes, whichever way it is called.

namespace dtrun::gpu_simulator {

/// (n, h, w, c) in memory; of filters, n is how many there are.
struct ConvolutionTensor {
  cudaDataType_t type = CUDA_R_32F;
  int64_t n = 0, c = 0, h = 0, w = 0;

  int64_t count() const { return n * c * h * w; }
};

enum class ConvolutionKind { kForward, kFilters, kInput };

struct ConvolutionCall {
  ConvolutionKind kind = ConvolutionKind::kForward;
  ConvolutionTensor x, w, y;
  void *x_data = nullptr, *w_data = nullptr, *y_data = nullptr;

  bool Fits() const;
  /// Writes y, w or x.
  void Compute() const;
  /// Writes something else, and never the same twice: what nobody should use.
  void ComputeByChance() const;

 private:
  void Write(double factor) const;
};

}  // namespace dtrun::gpu_simulator

#endif
