// cuBLASLt reads matrices in column-major order, so it sees each row-major matrix as its transpose.
// Describe therefore asks for c' = b' * a', and no values have to move. Proposed asks cuBLASLt for
// algorithms, and Choose tries them. Algorithms keeps the choice for later products with the same
// Key.

#include "models/gpu/product.h"

#include <dtrun/error.h>

#include <array>
#include <utility>

#include "models/message_text.h"

namespace dtrun::models {
namespace {

constexpr uint32_t kAlignment = 256;  // of a workspace, in bytes

cudaDataType_t TypeOf(DType dtype) {
  if (dtype == DType::kBF16) return CUDA_R_16BF;
  return dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

cublasComputeType_t ComputeTypeOf(const Product::Options& options) {
  const bool narrow = options.a.dtype == DType::kF32 && options.tf32 == Tf32::kAllowed;
  return narrow ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// The largest power of two that divides the address, at most kAlignment.
uint32_t AlignmentOf(const void* data) {
  const auto address = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data) | kAlignment);
  return address & (~address + 1);
}

// The chosen algorithms, by Product::Key.
ChoiceCache<cublasLtMatmulAlgo_t>& Algorithms() {
  static auto& algorithms = *new ChoiceCache<cublasLtMatmulAlgo_t>;
  return algorithms;
}

struct Extent {
  uint64_t rows, columns;
};

Extent Multiplied(const Matrix& matrix) {
  return matrix.transposed ? Extent{matrix.columns, matrix.rows}
                           : Extent{matrix.rows, matrix.columns};
}

}  // namespace

const CublasLt& CublasLt::Get() {
  static const CublasLt loaded = [] {
    const gpu::LoadedLibrary library({"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"});
    CublasLt functions;
    DTRUN_FOR_EACH_CUBLASLT_FUNCTION(DTRUN_FIND_IN_LIBRARY)
    return functions;
  }();
  return loaded;
}

void CublasLt::Check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::kSystem, Text(call, " failed: cublasStatus_t ", static_cast<int>(status)));
}

Product::Product(const gpu::Stream& stream, const Options& options, const Workspace& workspace)
    : stream_(stream), cublas_(CublasLt::Get()), options_(options), workspace_(workspace) {
  const Extent a = Multiplied(options.a), b = Multiplied(options.b);
  if (a.columns != b.rows || options.c.rows != a.rows || options.c.columns != b.columns) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "a product of ", a.rows, "x", a.columns, " and ", b.rows, "x", b.columns, " into ",
            options.c.rows, "x", options.c.columns));
  }
  if (reinterpret_cast<uintptr_t>(workspace.data) % kAlignment != 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("a product's workspace does not begin at a multiple of ", kAlignment, " bytes"));
  }
  operations_ = 2.0 * static_cast<double>(a.rows) * static_cast<double>(a.columns) *
                static_cast<double>(b.columns);
  const gpu::DeviceScope scope(stream_.device());
  CublasLt::Check(cublas_.cublasLtCreate(&handle_), "cublasLtCreate");
  try {
    Describe();
    Choose();
  } catch (...) {  // the caller can make another product instead
    Release();
    throw;
  }
}

Product::~Product() {
  const gpu::DeviceScope scope(stream_.device());
  Release();
}

void Product::Release() {
  for (const cublasLtMatrixLayout_t each : {a_, b_, c_})
    if (each != nullptr) cublas_.cublasLtMatrixLayoutDestroy(each);
  if (product_ != nullptr) cublas_.cublasLtMatmulDescDestroy(product_);
  if (handle_ != nullptr) cublas_.cublasLtDestroy(handle_);
}

void Product::Describe() {
  CublasLt::Check(
      cublas_.cublasLtMatmulDescCreate(&product_, ComputeTypeOf(options_), CUDA_R_32F),
      "cublasLtMatmulDescCreate");
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    CublasLt::Check(
        cublas_.cublasLtMatmulDescSetAttribute(product_, attribute, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
  };
  const auto transposition = [](const Matrix& matrix) {
    return static_cast<int32_t>(matrix.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, transposition(options_.b));
  set(CUBLASLT_MATMUL_DESC_TRANSB, transposition(options_.a));
  const auto lay_out = [&](cublasLtMatrixLayout_t* layout, const Matrix& matrix) {
    CublasLt::Check(
        cublas_.cublasLtMatrixLayoutCreate(
            layout, TypeOf(matrix.dtype), matrix.columns, matrix.rows,
            static_cast<int64_t>(matrix.columns)),
        "cublasLtMatrixLayoutCreate");
  };
  lay_out(&a_, options_.a);
  lay_out(&b_, options_.b);
  lay_out(&c_, options_.c);
}

// CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE keeps the parts of a split sum in the workspace, as
// floats, and adds them in a separate step. The other schemes first round the parts to c's type.
// One of them adds the parts to c in the order in which they arrive.
void Product::Prefer(cublasLtMatmulPreference_t preference) {
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    CublasLt::Check(
        cublas_.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_.bytes});
  prefer(
      CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(options_.b.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(options_.a.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(options_.c.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(options_.c.data));
}

void Product::Choose() {
  const std::vector<cublasLtMatmulAlgo_t> proposed = Proposed();
  algorithm_ = Algorithms().Get(Key(), [&] {
    const auto milliseconds = [&](size_t i) {
      return MillisecondsOf(stream_, [&] { Enqueue(proposed[i]); });
    };
    std::string problem = "it proposes none";
    const auto found = SelectCandidate(proposed.size(), options_.selection, milliseconds, problem);
    if (!found) ThrowNoAlgorithm(problem);
    return proposed[found->candidate];
  });
}

std::vector<cublasLtMatmulAlgo_t> Product::Proposed() {
  constexpr int kMost = 8;
  cublasLtMatmulPreference_t preference = nullptr;
  CublasLt::Check(
      cublas_.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  std::array<cublasLtMatmulHeuristicResult_t, kMost> results{};
  int count = 0;
  Prefer(preference);
  const cublasStatus_t found = cublas_.cublasLtMatmulAlgoGetHeuristic(
      handle_, product_, b_, a_, c_, c_, preference, kMost, results.data(), &count);
  cublas_.cublasLtMatmulPreferenceDestroy(preference);
  if (found != CUBLAS_STATUS_SUCCESS || count == 0)
    ThrowNoAlgorithm(Text("cublasStatus_t ", static_cast<int>(found)));
  std::vector<cublasLtMatmulAlgo_t> proposed;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) proposed.push_back(result.algo);
  }
  return proposed;
}

void Product::ThrowNoAlgorithm(const std::string& why) const {
  throw Error(
      ErrorCode::kUnavailable,
      Text(
          "cuBLASLt has no algorithm for a product into ", options_.c.rows, "x", options_.c.columns,
          " in ", NameOf(options_.a.dtype), " (", why, ")"));
}

// GPUs of one model are alike, so a choice that was made on one GPU holds for the others.
std::string Product::Key() const {
  const auto text = [](const Matrix& matrix) {
    return Text(
        matrix.rows, "x", matrix.columns, " ", NameOf(matrix.dtype), matrix.transposed ? "' " : " ",
        AlignmentOf(matrix.data), ", ");
  };
  return Text(
      text(options_.a), text(options_.b), text(options_.c),
      options_.tf32 == Tf32::kAllowed ? "TF32, " : "",
      options_.selection == Selection::kFirst ? "the first, " : "", workspace_.bytes, " bytes, ",
      stream_.device().name(), " with ", stream_.device().multiprocessors());
}

void Product::Enqueue() {
  const gpu::DeviceScope scope(stream_.device());
  Enqueue(algorithm_);
}

void Product::Enqueue(const cublasLtMatmulAlgo_t& algorithm) {
  const float one = 1, zero = 0;
  CublasLt::Check(
      cublas_.cublasLtMatmul(
          handle_, product_, &one, options_.b.data, b_, options_.a.data, a_, &zero, options_.c.data,
          c_, options_.c.data, c_, &algorithm, workspace_.data, workspace_.bytes,
          reinterpret_cast<cudaStream_t>(stream_.get())),
      "cublasLtMatmul");
}

}  // namespace dtrun::models
