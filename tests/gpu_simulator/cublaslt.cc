// The functions of libcublasLt.so.13 that dtrun calls: products of column-major matrices, by their
// definition, with sums in f64. The epilogues are a bias, a ReLU, its mask and its gradient, and
// the sums of a bias gradient.
//
// The heuristics propose two equal algorithms, so that dtrun has a choice to time. If the caller
// allows rounding reduction schemes, the algorithms round the halves of a sum to the type of the
// result. The epilogue with the number in DTRUN_SIMULATED_CUBLASLT_WITHOUT is refused, because the
// real library also refuses some epilogues.

#include <cublasLt.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
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
  void* bias = nullptr;  // or the output of a bias gradient
  uint8_t* mask = nullptr;
  int64_t mask_stride = 0;  // in bits

  // The bits of an epilogue's number.
  bool has_relu() const { return (epilogue & 2) != 0; }
  bool adds_bias() const { return (epilogue & 4) != 0; }
  bool is_masked() const { return (epilogue & 8) != 0; }
  bool has_mask() const { return (epilogue & 128) != 0; }
  bool sums_a() const { return epilogue == CUBLASLT_EPILOGUE_BGRADA; }
};

// The alignments are of a, b, c and d, in bytes.
struct Preference {
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignments[4] = {256, 256, 256, 256};
};

// The content of a cublasLtMatmulAlgo_t.
struct Algorithm {
  uint32_t alignments[4];
  uint32_t rounds_halves;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

// The library's opaque structs begin with a pointer to the simulator's struct.
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

bool IsRefused(uint32_t epilogue) {
  const char* without = std::getenv("DTRUN_SIMULATED_CUBLASLT_WITHOUT");
  return without != nullptr && std::strtoul(without, nullptr, 10) == epilogue;
}

// The documented requirements of a mask.
bool MaskFits(const Operation& op, const Layout& d) {
  if (!op.has_mask()) return true;
  return op.mask != nullptr && reinterpret_cast<uintptr_t>(op.mask) % 16 == 0 &&
         op.mask_stride % 128 == 0 && static_cast<uint64_t>(op.mask_stride) >= d.rows;
}

float Rounded(double value, cudaDataType_t type) {
  float wide = 0;
  StoreValue(value, &wide, 0, type);
  return static_cast<float>(LoadValue(&wide, 0, type));
}

// Applies the epilogue to one sum.
double Finished(const Operation& op, double sum, uint64_t i, uint64_t j, cudaDataType_t type) {
  if (op.adds_bias()) sum += LoadValue(op.bias, i, type);
  if (op.has_mask()) {
    uint8_t& byte = op.mask[j * static_cast<uint64_t>(op.mask_stride) / 8 + i / 8];
    const auto bit = static_cast<uint8_t>(1u << i % 8);
    if (op.is_masked()) return (byte & bit) != 0 ? sum : 0;
    byte = static_cast<uint8_t>(sum > 0 ? byte | bit : byte & ~bit);
  }
  return op.has_relu() && !(sum > 0) ? 0 : sum;
}

void AddScaled(double factor, const double* from, std::vector<double>& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += factor * from[i];
}

void Multiply(
    const Operation& op, double alpha, bool rounds_halves, const Layout& a, const void* a_data,
    const Layout& b, const void* b_data, const Layout& d, void* d_data) {
  const Shape shape = ShapeOf(op, a, b, d);
  const bool ta = op.transposes_a == CUBLAS_OP_T, tb = op.transposes_b == CUBLAS_OP_T;
  // All sums of a column advance together, so compilers can vectorize them.
  std::vector<double> left(shape.k * shape.m), right(shape.n * shape.k);
  for (uint64_t k = 0; k < shape.k; ++k)
    for (uint64_t i = 0; i < shape.m; ++i)
      left[k * shape.m + i] = LoadValue(a_data, ta ? i * a.stride + k : k * a.stride + i, a.type);
  for (uint64_t j = 0; j < shape.n; ++j)
    for (uint64_t k = 0; k < shape.k; ++k)
      right[j * shape.k + k] = LoadValue(b_data, tb ? k * b.stride + j : j * b.stride + k, b.type);
  std::vector<double> halves[2];
  for (uint64_t j = 0; j < shape.n; ++j) {
    for (std::vector<double>& half : halves) half.assign(shape.m, 0);
    for (uint64_t k = 0; k < shape.k; ++k)
      AddScaled(right[j * shape.k + k], &left[k * shape.m], halves[k * 2 / shape.k]);
    for (uint64_t i = 0; i < shape.m; ++i) {
      double parts[2] = {halves[0][i], halves[1][i]};
      if (rounds_halves)
        for (double& part : parts) part = static_cast<double>(Rounded(part, d.type));
      const double sum = alpha * (parts[0] + parts[1]);
      StoreValue(Finished(op, sum, i, j, d.type), d_data, j * d.stride + i, d.type);
    }
  }
  if (!op.sums_a()) return;
  std::vector<double> sums(shape.m);
  for (uint64_t k = 0; k < shape.k; ++k) AddScaled(1, &left[k * shape.m], sums);
  for (uint64_t i = 0; i < shape.m; ++i) StoreValue(sums[i], op.bias, i, d.type);
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
      {CUBLASLT_MATMUL_DESC_BIAS_POINTER, {&op.bias, sizeof op.bias}},
      {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, {&op.mask, sizeof op.mask}},
      {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, {&op.mask_stride, sizeof op.mask_stride}}};
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
  Inside<Preference>(*preference) = new Preference;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete Inside<Preference>(preference);
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
    const void* value, size_t bytes) {
  Preference& preferred = *Inside<Preference>(preference);
  uint64_t workspace = 0;
  const std::map<cublasLtMatmulPreferenceAttributes_t, std::pair<void*, size_t>> known = {
      {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, {&workspace, sizeof workspace}},
      {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, {&preferred.schemes, 4}},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, {&preferred.alignments[0], 4}},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, {&preferred.alignments[1], 4}},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, {&preferred.alignments[2], 4}},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, {&preferred.alignments[3], 4}}};
  const auto found = known.find(attribute);
  if (found == known.end() || found->second.second != bytes) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(found->second.first, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int requested, cublasLtMatmulHeuristicResult_t results[],
    int* returned) {
  const Operation& op = *Inside<Operation>(description);
  const Preference& preferred = *Inside<Preference>(preference);
  const bool fits = ShapeOf(op, Of(a), Of(b), Of(d)).fits && c == d && MaskFits(op, Of(d)) &&
                    !IsRefused(op.epilogue);
  *returned = fits ? (requested < 2 ? requested : 2) : 0;
  Algorithm algorithm{};
  std::memcpy(algorithm.alignments, preferred.alignments, sizeof algorithm.alignments);
  constexpr uint32_t kRounding =
      CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  algorithm.rounds_halves = (preferred.schemes & kRounding) != 0 ? 1 : 0;
  for (int i = 0; i < *returned; ++i) {
    results[i] = {};
    results[i].state = CUBLAS_STATUS_SUCCESS;
    std::memcpy(&results[i].algo, &algorithm, sizeof algorithm);
  }
  return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
EXPORT cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a_data,
    cublasLtMatrixLayout_t a, const void* b_data, cublasLtMatrixLayout_t b, const void*,
    const void* c_data, cublasLtMatrixLayout_t, void* d_data, cublasLtMatrixLayout_t d,
    const cublasLtMatmulAlgo_t* chosen, void* workspace, size_t, cudaStream_t stream) {
  const Operation op = *Inside<Operation>(description);
  const Layout left = Of(a), right = Of(b), result = Of(d);
  Algorithm algorithm{};
  std::memcpy(&algorithm, chosen, sizeof algorithm);
  const void* const data[] = {a_data, b_data, c_data, d_data};
  for (int i = 0; i < 4; ++i)
    if (reinterpret_cast<uintptr_t>(data[i]) % algorithm.alignments[i] != 0)
      return CUBLAS_STATUS_INVALID_VALUE;
  if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (!ShapeOf(op, left, right, result).fits) return CUBLAS_STATUS_INVALID_VALUE;
  const double scale = static_cast<double>(*static_cast<const float*>(alpha));
  const bool rounds_halves = algorithm.rounds_halves != 0;
  const bool enqueued = EnqueueOnStream(reinterpret_cast<CUstream>(stream), [=] {
    Multiply(op, scale, rounds_halves, left, a_data, right, b_data, result, d_data);
  });
  return enqueued ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
