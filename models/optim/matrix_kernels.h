#ifndef DTRUN_MODELS_OPTIM_MATRIX_KERNELS_H_
#define DTRUN_MODELS_OPTIM_MATRIX_KERNELS_H_

#include <cstddef>

namespace dtrun::models {

/// Rows, columns and strides of all matrices are multiples of this. Matrices are row-major.
constexpr size_t kMatrixBlock = 16;

/// Rows [first, first + kMatrixBlock) of gram = x' x, from the diagonal's block on: x is (rows,
/// stride), gram (stride, stride). Sums in f32 over 256 rows and in f64 over these sums.
void GramRows(const float* x, size_t rows, size_t stride, size_t first, double* gram);

/// Rows [first, first + kMatrixBlock) of c = a b; all are (size, size).
void ProductRows(const double* a, const double* b, size_t size, size_t first, double* c);

/// Rows [first, first + kMatrixBlock) of x = x b; x is (rows, stride), b (stride, stride).
/// `scratch` holds kMatrixBlock * stride elements.
void MultiplyRows(float* x, const float* b, size_t stride, size_t first, float* scratch);

}  // namespace dtrun::models

#endif
