#include "models/optim/orthogonalise.h"

#include <algorithm>
#include <cmath>

#include "models/optim/matrix_kernels.h"

namespace dtrun::models {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

size_t RoundUp(size_t n) { return (n + kMatrixBlock - 1) / kMatrixBlock * kMatrixBlock; }

// body(first) for first = 0, kMatrixBlock, ... below `rows`. What a block computes does not depend
// on who computes it.
template <typename Body>
void ForEachBlock(size_t rows, const Body& body) {
  const auto blocks = static_cast<int64_t>(rows / kMatrixBlock);
#pragma omp parallel for schedule(dynamic)
  for (int64_t block = 0; block < blocks; ++block) body(static_cast<size_t>(block) * kMatrixBlock);
}

void Multiply(
    const std::vector<double>& a, const std::vector<double>& b, size_t size,
    std::vector<double>& product) {
  ForEachBlock(
      size, [&](size_t first) { ProductRows(a.data(), b.data(), size, first, product.data()); });
}

}  // namespace

void Orthogonaliser::Resize(size_t rows, size_t columns) {
  wide_ = columns > rows;
  rows_ = std::max(rows, columns);
  columns_ = std::min(rows, columns);
  padded_rows_ = RoundUp(rows_);
  stride_ = RoundUp(columns_);
  matrix_.assign(padded_rows_ * stride_, 0);
  factor_.resize(stride_ * stride_);
  for (std::vector<double>* each : {&gram_, &square_, &polynomial_, &product_, &scratch_})
    each->resize(stride_ * stride_);
}

void Orthogonaliser::ComputeGram() {
  ForEachBlock(stride_, [&](size_t first) {
    GramRows(matrix_.data(), padded_rows_, stride_, first, gram_.data());
  });
  for (size_t i = 0; i < stride_; ++i)
    for (size_t j = 0; j < i; ++j) gram_[i * stride_ + j] = gram_[j * stride_ + i];
}

// The iteration multiplies X by a polynomial Q of X' X. The products of these are gathered, and X'
// X follows without X, so that the long side of the matrix is seen twice and not at each iteration:
//   G = X' X,  P = I;   Q = a I + b G + c G^2,  P = P Q,  G = G Q^2   (all of them commute)
// These are kept in f64: five iterations make small singular values 480 times larger, and errors of
// G the square of that.
bool Orthogonaliser::ComputeFactor(int iterations) {
  const size_t n = stride_;
  double squares = 0;
  for (size_t i = 0; i < columns_; ++i) squares += gram_[i * n + i];
  if (!(squares > 0)) return false;
  for (double& g : gram_) g /= squares;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) product_[i * n + j] = i == j ? 1 / std::sqrt(squares) : 0;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    Multiply(gram_, gram_, n, square_);
    for (size_t k = 0; k < n * n; ++k) polynomial_[k] = kB * gram_[k] + kC * square_[k];
    for (size_t i = 0; i < n; ++i) polynomial_[i * n + i] += kA;
    Multiply(product_, polynomial_, n, scratch_);
    std::swap(product_, scratch_);
    if (iteration + 1 == iterations) break;
    Multiply(gram_, polynomial_, n, scratch_);
    Multiply(scratch_, polynomial_, n, gram_);
  }
  std::copy(product_.begin(), product_.end(), factor_.begin());
  return true;
}

void Orthogonaliser::Apply(int iterations, float keep, float rate, float* value) {
  ComputeGram();
  const bool moves = ComputeFactor(iterations);
  ForEachBlock(padded_rows_, [&](size_t first) {
    std::vector<float> scratch(kMatrixBlock * stride_);
    if (moves) MultiplyRows(matrix_.data(), factor_.data(), stride_, first, scratch.data());
  });
  const size_t rows = wide_ ? columns_ : rows_, columns = wide_ ? rows_ : columns_;
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c)
      value[r * columns + c] = keep * value[r * columns + c] - rate * at(r, c);
}

}  // namespace dtrun::models
