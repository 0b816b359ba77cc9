#ifndef DTRUN_MODELS_GPU_PRODUCT_H_
#define DTRUN_MODELS_GPU_PRODUCT_H_

#include <cublasLt.h>
#include <dtrun/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "models/gpu/convolution.h"

namespace dtrun::models {

// The functions of cuBLASLt that are called; it is loaded when the first network needs it.
#define DTRUN_FOR_EACH_CUBLASLT_FUNCTION(X) \
  X(cublasLtCreate)                         \
  X(cublasLtDestroy)                        \
  X(cublasLtMatmul)                         \
  X(cublasLtMatmulAlgoGetHeuristic)         \
  X(cublasLtMatmulDescCreate)               \
  X(cublasLtMatmulDescDestroy)              \
  X(cublasLtMatmulDescSetAttribute)         \
  X(cublasLtMatrixLayoutCreate)             \
  X(cublasLtMatrixLayoutDestroy)            \
  X(cublasLtMatmulPreferenceCreate)         \
  X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)

/// NVIDIA's cuBLASLt 12 or 13. Thread-safe.
struct CublasLt {
#define DTRUN_CUBLASLT_MEMBER(name) decltype(&::name) name = nullptr;
  DTRUN_FOR_EACH_CUBLASLT_FUNCTION(DTRUN_CUBLASLT_MEMBER)
#undef DTRUN_CUBLASLT_MEMBER

  /// Throws Error kUnavailable, with the loader's words, where there is none.
  static const CublasLt& Get();
  /// Throws Error kSystem, "`call` failed: ...", unless it was done.
  static void Check(cublasStatus_t status, const char* call);
};

/// What is done with a product while it is in registers.
enum class Epilogue {
  kNone,
  kBias,          ///< c + bias
  kBiasRelu,      ///< max(c + bias, 0)
  kBiasReluMask,  ///< the same, and the mask gets where c + bias is above zero
  kMasked,        ///< c where the mask is set, else 0
  kSums,          ///< c, and the sums of b's columns besides
};

/// Bytes of a mask's row: a bit for each column, the first one the lowest of its byte, filled up to
/// 128 bits, as cuBLASLt has them.
inline uint64_t MaskBytes(uint64_t columns) { return (columns + 127) / 128 * 16; }

/// A matrix in memory, row by row.
struct Matrix {
  void* data = nullptr;
  uint64_t rows = 0, columns = 0;
  DType dtype = DType::kF32;
  bool transposed = false;  ///< it is the matrix's transpose that is multiplied
};

/// c = scale * a * b of matrices that lie row by row at fixed places, computed by cuBLASLt, with
/// sums in f32. Of the algorithms that it proposes, the fastest is used: they are timed when the
/// first product of its kind (extents, types, alignments, epilogue, TF32, workspace) in the process
/// on this kind of GPU is made, which writes what the product does. None is used that adds up parts
/// of a sum in the type of c, nor in an order that might change. One thread at a time; several may
/// be made at once by several threads.
class Product {
 public:
  struct Options {
    Matrix a, b, c;  ///< c is not transposed
    Epilogue epilogue = Epilogue::kNone;
    const void* bias = nullptr;  ///< (columns of c), of c's dtype
    void* mask = nullptr;        ///< (rows of c, MaskBytes(columns of c)), at a multiple of 16
    void* sums = nullptr;        ///< (columns of c), of c's dtype
    float scale = 1;
    Tf32 tf32 = Tf32::kAllowed;
    Selection selection = Selection::kFastest;
  };

  /// `workspace` begins at a multiple of 256 bytes. Throws Error kInvalidArgument for matrices that
  /// do not fit, kUnavailable without cuBLASLt or when it has no algorithm for this.
  Product(
      const gpu::Device& device, CUstream stream, const Options& options,
      const Workspace& workspace);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void Enqueue();
  /// Multiplications and additions: 2 * rows * columns * depth.
  double operations() const { return operations_; }

 private:
  void Release();
  void Describe();
  void Prefer(cublasLtMatmulPreference_t preference);
  void Choose();
  std::vector<cublasLtMatmulAlgo_t> Proposed();
  [[noreturn]] void ThrowNoAlgorithm(const std::string& why) const;
  std::string Key() const;
  double Milliseconds(const cublasLtMatmulAlgo_t& algorithm);
  void Enqueue(const cublasLtMatmulAlgo_t& algorithm);

  const gpu::Device& device_;
  CUstream stream_;
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
