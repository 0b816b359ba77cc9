// The functions of libcublasLt.so.13 that dtrun calls: products of matrices that lie column by
// column, by their definition, with sums in f64, and with a bias and a ReLU behind them. Two
// algorithms are proposed, which are the same, so that who chooses has something to time.

#include <cublasLt.h>

#include <cstring>
#include <map>
#include <vector>

#include "tests/gpu_simulator/host_math.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using dtrun::gpu_simulator::EnqueueOnStream;
using dtrun::gpu_simulator::LoadValue;
using dtrun::gpu_simulator::StoreValue;

namespace {

struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns, stride;
};

struct Operation {
  int32_t transposes_a = CUBLAS_OP_N, transposes_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

// What the library's opaque structs are made of here: a pointer in front.
template <typename T, typename Opaque>
T*& Inside(Opaque* opaque) {
  return *reinterpret_cast<T**>(opaque);
}

const Layout& Of(cublasLtMatrixLayout_t layout) { return *Inside<Layout>(layout); }

struct Shape {
  uint64_t m, n, k;
  bool fits;
};

Shape ShapeOf(const Operation& op, const Layout& a, const Layout& b, const Layout& d) {
  const bool ta = op.transposes_a == CUBLAS_OP_T, tb = op.transposes_b == CUBLAS_OP_T;
  const uint64_t k = ta ? a.rows : a.columns;
  return {
      d.rows, d.columns, k,
      (ta ? a.columns : a.rows) == d.rows && (tb ? b.columns : b.rows) == k &&
          (tb ? b.rows : b.columns) == d.columns};
}

void Multiply(
    const Operation& op, const Layout& a, const void* a_data, const Layout& b, const void* b_data,
    const Layout& d, void* d_data) {
  const Shape shape = ShapeOf(op, a, b, d);
  const bool ta = op.transposes_a == CUBLAS_OP_T, tb = op.transposes_b == CUBLAS_OP_T;
  std::vector<double> left(shape.m * shape.k), right(shape.n * shape.k);
  for (uint64_t i = 0; i < shape.m; ++i)
    for (uint64_t k = 0; k < shape.k; ++k)
      left[i * shape.k + k] = LoadValue(a_data, ta ? i * a.stride + k : k * a.stride + i, a.type);
  for (uint64_t j = 0; j < shape.n; ++j)
    for (uint64_t k = 0; k < shape.k; ++k)
      right[j * shape.k + k] = LoadValue(b_data, tb ? k * b.stride + j : j * b.stride + k, b.type);
  for (uint64_t j = 0; j < shape.n; ++j) {
    for (uint64_t i = 0; i < shape.m; ++i) {
      double sum = 0;
      for (uint64_t k = 0; k < shape.k; ++k) sum += left[i * shape.k + k] * right[j * shape.k + k];
      if (op.epilogue & CUBLASLT_EPILOGUE_BIAS) sum += LoadValue(op.bias, i, d.type);
      if (op.epilogue & CUBLASLT_EPILOGUE_RELU) sum = sum > 0 ? sum : 0;
      StoreValue(sum, d_data, j * d.stride + i, d.type);
    }
  }
}

}  // namespace

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<char*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulDescCreate(
    cublasLtMatmulDesc_t* description, cublasComputeType_t, cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *description = new cublasLtMatmulDescOpaque_t;
  Inside<Operation>(*description) = new Operation;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete Inside<Operation>(description);
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const void* value,
    size_t bytes) {
  Operation& op = *Inside<Operation>(description);
  const std::map<cublasLtMatmulDescAttributes_t, std::pair<void*, size_t>> known = {
      {CUBLASLT_MATMUL_DESC_TRANSA, {&op.transposes_a, sizeof op.transposes_a}},
      {CUBLASLT_MATMUL_DESC_TRANSB, {&op.transposes_b, sizeof op.transposes_b}},
      {CUBLASLT_MATMUL_DESC_EPILOGUE, {&op.epilogue, sizeof op.epilogue}},
      {CUBLASLT_MATMUL_DESC_BIAS_POINTER, {&op.bias, sizeof op.bias}}};
  const auto found = known.find(attribute);
  if (found == known.end() || found->second.second != bytes) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(found->second.first, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(
    cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t columns,
    int64_t stride) {
  if (stride < 0 || uint64_t(stride) < rows) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new cublasLtMatrixLayoutOpaque_t;
  Inside<Layout>(*layout) = new Layout{type, rows, columns, uint64_t(stride)};
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete Inside<Layout>(layout);
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t attribute, const void*,
    size_t bytes) {
  const bool known =
      attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof(uint64_t);
  return known ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t, int requested, cublasLtMatmulHeuristicResult_t results[],
    int* returned) {
  const bool fits = ShapeOf(*Inside<Operation>(description), Of(a), Of(b), Of(d)).fits && c == d;
  *returned = fits ? (requested < 2 ? requested : 2) : 0;
  for (int i = 0; i < *returned; ++i) {
    results[i] = {};
    results[i].state = CUBLAS_STATUS_SUCCESS;
  }
  return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
EXPORT cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t, cublasLtMatmulDesc_t description, const void*, const void* a_data,
    cublasLtMatrixLayout_t a, const void* b_data, cublasLtMatrixLayout_t b, const void*,
    const void*, cublasLtMatrixLayout_t, void* d_data, cublasLtMatrixLayout_t d,
    const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  const Operation op = *Inside<Operation>(description);
  const Layout left = Of(a), right = Of(b), result = Of(d);
  if (!ShapeOf(op, left, right, result).fits) return CUBLAS_STATUS_INVALID_VALUE;
  const bool enqueued = EnqueueOnStream(reinterpret_cast<CUstream>(stream), [=] {
    Multiply(op, left, a_data, right, b_data, result, d_data);
  });
  return enqueued ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
