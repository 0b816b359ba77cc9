#include "models/optim/matrix_kernels.h"

#include <algorithm>
#include <cstring>

#include "models/function_clones.h"

namespace dtrun::models {
namespace {

// Eight rows of a vector each: what the registers of AVX2 and of AVX-512 hold.
constexpr size_t kRows = 8;
typedef float Floats __attribute__((vector_size(16 * sizeof(float))));
typedef double Doubles __attribute__((vector_size(8 * sizeof(double))));

// sums[i] += sum over k < count of a[k * a_step + i * a_row] * (the vector at b + k * b_step)
template <typename Vector, typename T>
DTRUN_KERNEL_PART void AddProducts(
    const T* a, size_t a_step, size_t a_row, const T* b, size_t b_step, size_t count,
    Vector* sums) {
  Vector s0 = sums[0], s1 = sums[1], s2 = sums[2], s3 = sums[3];
  Vector s4 = sums[4], s5 = sums[5], s6 = sums[6], s7 = sums[7];
  for (size_t k = 0; k < count; ++k, a += a_step, b += b_step) {
    Vector right;
    std::memcpy(&right, b, sizeof(right));
    s0 += a[0] * right;
    s1 += a[a_row] * right;
    s2 += a[2 * a_row] * right;
    s3 += a[3 * a_row] * right;
    s4 += a[4 * a_row] * right;
    s5 += a[5 * a_row] * right;
    s6 += a[6 * a_row] * right;
    s7 += a[7 * a_row] * right;
  }
  sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
  sums[4] = s4, sums[5] = s5, sums[6] = s6, sums[7] = s7;
}

}  // namespace

DTRUN_KERNEL void GramRows(const float* x, size_t rows, size_t stride, size_t first, double* gram) {
  constexpr size_t kRowsOfSum = 256, kColumns = 16;
  for (size_t i = first; i < first + kMatrixBlock; ++i)
    std::fill(gram + i * stride + first, gram + (i + 1) * stride, 0.0);
  for (size_t row = 0; row < rows; row += kRowsOfSum) {
    const float* block = x + row * stride;
    const size_t count = std::min(kRowsOfSum, rows - row);
    for (size_t i = first; i < first + kMatrixBlock; i += kRows)
      for (size_t j = first; j < stride; j += kColumns) {
        Floats sums[kRows] = {};
        AddProducts(block + i, stride, 1, block + j, stride, count, sums);
        for (size_t r = 0; r < kRows; ++r)
          for (size_t c = 0; c < kColumns; ++c)
            gram[(i + r) * stride + j + c] += static_cast<double>(sums[r][c]);
      }
  }
}

DTRUN_KERNEL void ProductRows(
    const double* a, const double* b, size_t size, size_t first, double* c) {
  constexpr size_t kColumns = 8;
  for (size_t j = 0; j < size; j += kColumns)
    for (size_t i = first; i < first + kMatrixBlock; i += kRows) {
      Doubles sums[kRows] = {};
      AddProducts(a + i * size, 1, size, b + j, size, size, sums);
      for (size_t r = 0; r < kRows; ++r)
        std::memcpy(c + (i + r) * size + j, &sums[r], sizeof(Doubles));
    }
}

DTRUN_KERNEL void MultiplyRows(
    float* x, const float* b, size_t stride, size_t first, float* scratch) {
  constexpr size_t kColumns = 16;
  float* block = x + first * stride;
  for (size_t j = 0; j < stride; j += kColumns)
    for (size_t i = 0; i < kMatrixBlock; i += kRows) {
      Floats sums[kRows] = {};
      AddProducts(block + i * stride, 1, stride, b + j, stride, stride, sums);
      for (size_t r = 0; r < kRows; ++r)
        std::memcpy(scratch + (i + r) * stride + j, &sums[r], sizeof(Floats));
    }
  std::copy(scratch, scratch + kMatrixBlock * stride, block);
}

}  // namespace dtrun::models
