#ifndef DTRUN_TESTS_GPU_SIMULATOR_CONVOLUTION_MATH_H_
#define DTRUN_TESTS_GPU_SIMULATOR_CONVOLUTION_MATH_H_

#include <library_types.h>

#include <array>
#include <cstdint>

// The convolutions of both APIs of simulated cuDNN, by their definition, with sums in f64.

namespace dtrun::gpu_simulator {

/// The layout in memory is (n, h, w, c). For filters, n is the number of filters.
struct ConvolutionTensor {
  cudaDataType_t type = CUDA_R_32F;
  int64_t n = 0, c = 0, h = 0, w = 0;

  int64_t count() const { return n * c * h * w; }
};

/// For rows and columns: the input's padding with zeros, and the steps of the filters.
struct ConvolutionWindows {
  std::array<int64_t, 2> before = {0, 0}, after = {0, 0}, strides = {1, 1};

  /// No padding is negative, and each stride is at least 1.
  bool IsValid() const;
};

enum class ConvolutionKind { kForward, kFilters, kInput };

struct ConvolutionCall {
  ConvolutionKind kind = ConvolutionKind::kForward;
  ConvolutionTensor x, w, y;
  ConvolutionWindows windows = {};
  void *x_data = nullptr, *w_data = nullptr, *y_data = nullptr;

  bool Fits() const;
  /// Writes the result: y, w or x, as `kind` says.
  void Compute() const;
  /// Writes a wrong result, another one on each call, for algorithms that dtrun must not choose.
  void ComputeByChance() const;

 private:
  void Write(double factor) const;
};

}  // namespace dtrun::gpu_simulator

#endif
