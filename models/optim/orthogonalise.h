#ifndef DTRUN_MODELS_OPTIM_ORTHOGONALISE_H_
#define DTRUN_MODELS_OPTIM_ORTHOGONALISE_H_

#include <cstddef>
#include <vector>

namespace dtrun::models {

/// Brings a matrix near the orthogonal matrix next to it (of its singular value decomposition U S
/// V', near U V'), by the Newton-Schulz iteration that K. Jordan et al. give for Muon (2024):
///   X = x / |x|                                    |x| is the Frobenius norm
///   X = a X + b (X X') X + c (X X')^2 X            `iterations` times
/// with a = 3.4445, b = -4.7750, c = 2.0315. Five bring singular values from 0.003 on into [0.68,
/// 1.14], where they move on; they do not converge to 1, nor is that needed.
///
/// Keeps its memory for the next matrix. Computes on OpenMP's threads; the bits do not depend on
/// their number. Not thread-safe.
class Orthogonaliser {
 public:
  /// Room for a matrix of rows x columns, to be filled by `at`.
  void Resize(size_t rows, size_t columns);
  float& at(size_t row, size_t column) {
    return wide_ ? matrix_[column * stride_ + row] : matrix_[row * stride_ + column];
  }
  /// What was filled in, made orthogonal: value = keep * value - rate * that, row-major. A matrix
  /// of zeros stays one.
  void Apply(int iterations, float keep, float rate, float* value);

 private:
  void ComputeGram();
  bool ComputeFactor(int iterations);

  // The matrix has at least as many rows as columns here: a wide one is kept transposed. Rows and
  // columns of zeros fill it up to whole blocks.
  bool wide_ = false;
  size_t rows_ = 0, columns_ = 0;  // as it is kept
  size_t padded_rows_ = 0, stride_ = 0;
  std::vector<float> matrix_, factor_;  // (padded_rows_, stride_), (stride_, stride_)
  std::vector<double> gram_, square_, polynomial_, product_, scratch_;  // (stride_, stride_)
};

}  // namespace dtrun::models

#endif
