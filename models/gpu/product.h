#ifndef DTRUN_MODELS_GPU_PRODUCT_H_
#define DTRUN_MODELS_GPU_PRODUCT_H_

#include <cublasLt.h>
#include <dtrun/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/driver.h"
#include "gpu/stream.h"
#include "models/gpu/convolution.h"

namespace dtrun::models {

// The cuBLASLt functions that dtrun calls. The first call of CublasLt::Get loads the library.
// clang-format off
#define DTRUN_FOR_EACH_CUBLASLT_FUNCTION(X)                                                       \
  X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtMatmul) X(cublasLtMatmulAlgoGetHeuristic)        \
  X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute)      \
  X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy) X(cublasLtMatmulPreferenceCreate)  \
  X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)
// clang-format on

/// The functions of NVIDIA's cuBLASLt 12 or 13. Thread-safe.
struct CublasLt {
  DTRUN_FOR_EACH_CUBLASLT_FUNCTION(DTRUN_LIBRARY_MEMBER)

  /// Loads cuBLASLt in the first call. Throws Error kUnavailable, with the loader's message,
  /// without cuBLASLt.
  static const CublasLt& Get();
  /// Throws Error kSystem, "`call` failed: ...", unless `status` is success.
  static void Check(cublasStatus_t status, const char* call);
};

/// A row-major matrix in memory.
struct Matrix {
  void* data = nullptr;
  uint64_t rows = 0, columns = 0;
  DType dtype = DType::kF32;
  bool transposed = false;  ///< the product takes the transpose of this matrix
};

/// c = a * b of row-major matrices at fixed addresses, computed by cuBLASLt with sums in
/// f32.
///
/// The first product of a kind (extents, types, alignments, TF32, selection, workspace,
/// GPU model) in the process tries the algorithms that cuBLASLt proposes. The trial writes the
/// outputs of the product. Later products of that kind use the same algorithm. Algorithms that add
/// parts of a sum in the type of c, or in an order that may change, are not used.
///
/// All work goes to the constructor's stream and may be captured. One thread at a time, but several
/// threads may make products at once.
class Product {
 public:
  struct Options {
    Matrix a, b, c;  ///< c is not transposed
    Tf32 tf32 = Tf32::kAllowed;
    Selection selection = Selection::kFirst;
  };

  /// `workspace` begins at a multiple of 256 bytes. Throws Error kInvalidArgument if the extents of
  /// the matrices do not match, and kUnavailable if cuBLASLt or an algorithm for the product is
  /// missing.
  Product(const gpu::Stream& stream, const Options& options, const Workspace& workspace);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void Enqueue();
  /// The number of multiplications and additions: 2 * rows * columns * depth.
  double operations() const { return operations_; }

 private:
  void Release();
  void Describe();
  void Prefer(cublasLtMatmulPreference_t preference);
  void Choose();
  std::vector<cublasLtMatmulAlgo_t> Proposed();
  [[noreturn]] void ThrowNoAlgorithm(const std::string& why) const;
  std::string Key() const;
  void Enqueue(const cublasLtMatmulAlgo_t& algorithm);

  const gpu::Stream& stream_;
  const CublasLt& cublas_;
  Options options_;
  Workspace workspace_;
  double operations_ = 0;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace dtrun::models

#endif
