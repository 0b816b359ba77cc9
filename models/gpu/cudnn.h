#ifndef DTRUN_MODELS_GPU_CUDNN_H_
#define DTRUN_MODELS_GPU_CUDNN_H_

#include <cudnn.h>
#include <dtrun/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "gpu/driver.h"
#include "gpu/stream.h"

namespace dtrun::models {

// The cuDNN functions that dtrun calls. The first call of Cudnn::Get loads the library.
// clang-format off
#define DTRUN_FOR_EACH_CUDNN_FUNCTION(X)                                                          \
  X(cudnnCreate) X(cudnnDestroy) X(cudnnSetStream) X(cudnnGetErrorString)                         \
  X(cudnnCreateTensorDescriptor) X(cudnnSetTensor4dDescriptor) X(cudnnDestroyTensorDescriptor)    \
  X(cudnnCreateFilterDescriptor) X(cudnnSetFilter4dDescriptor) X(cudnnDestroyFilterDescriptor)    \
  X(cudnnCreateConvolutionDescriptor) X(cudnnSetConvolution2dDescriptor)                          \
  X(cudnnSetConvolutionMathType) X(cudnnDestroyConvolutionDescriptor)                             \
  X(cudnnGetConvolutionForwardAlgorithm_v7) X(cudnnGetConvolutionBackwardDataAlgorithm_v7)        \
  X(cudnnGetConvolutionBackwardFilterAlgorithm_v7) X(cudnnConvolutionForward)                     \
  X(cudnnConvolutionBackwardData) X(cudnnConvolutionBackwardFilter)

// The functions of cuDNN's graph API. NVIDIA also calls this API the backend.
#define DTRUN_FOR_EACH_CUDNN_GRAPH_FUNCTION(X)                                                    \
  X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor) X(cudnnBackendSetAttribute)    \
  X(cudnnBackendGetAttribute) X(cudnnBackendFinalize) X(cudnnBackendExecute)                      \
  X(cudnnGetLastErrorString)
// clang-format on

struct CudnnGraph {
  DTRUN_FOR_EACH_CUDNN_GRAPH_FUNCTION(DTRUN_LIBRARY_MEMBER)
};

/// The functions of NVIDIA's cuDNN 9. Thread-safe.
struct Cudnn {
  DTRUN_FOR_EACH_CUDNN_FUNCTION(DTRUN_LIBRARY_MEMBER)
  std::optional<CudnnGraph> graph;  ///< none if the library lacks one of them

  /// Loads cuDNN in the first call. Throws Error kUnavailable, with the loader's message, without
  /// cuDNN.
  static const Cudnn& Get();
  /// Throws Error kSystem, "`call` failed: ..." with cuDNN's message, unless `status` is success.
  void Check(cudnnStatus_t status, const char* call) const;
};

/// The cuDNN data type for f32, bf16 or f16.
cudnnDataType_t CudnnTypeOf(DType dtype);

/// A cuDNN handle that enqueues into one stream. The stream outlives the handle. One thread at a
/// time.
class CudnnHandle {
 public:
  /// Throws Error kUnavailable without cuDNN, and kSystem if a call of cuDNN fails.
  explicit CudnnHandle(const gpu::Stream& stream);
  ~CudnnHandle();
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;

  cudnnHandle_t get() const { return handle_; }
  const gpu::Stream& stream() const { return stream_; }

 private:
  const gpu::Stream& stream_;
  cudnnHandle_t handle_ = nullptr;
};

/// The attribute type that cuDNN's graph API has for values of T.
template <typename T>
struct BackendType;
#define DTRUN_BACKEND_TYPE(type, constant)                          \
  template <>                                                       \
  struct BackendType<type> {                                        \
    static constexpr cudnnBackendAttributeType_t kValue = constant; \
  };
DTRUN_BACKEND_TYPE(int64_t, CUDNN_TYPE_INT64)
DTRUN_BACKEND_TYPE(float, CUDNN_TYPE_FLOAT)
DTRUN_BACKEND_TYPE(void*, CUDNN_TYPE_VOID_PTR)
DTRUN_BACKEND_TYPE(cudnnHandle_t, CUDNN_TYPE_HANDLE)
DTRUN_BACKEND_TYPE(cudnnDataType_t, CUDNN_TYPE_DATA_TYPE)
DTRUN_BACKEND_TYPE(cudnnConvolutionMode_t, CUDNN_TYPE_CONVOLUTION_MODE)
DTRUN_BACKEND_TYPE(cudnnBackendHeurMode_t, CUDNN_TYPE_HEUR_MODE)
DTRUN_BACKEND_TYPE(cudnnBackendKnobType_t, CUDNN_TYPE_KNOB_TYPE)
DTRUN_BACKEND_TYPE(cudnnBackendNumericalNote_t, CUDNN_TYPE_NUMERICAL_NOTE)
#undef DTRUN_BACKEND_TYPE

/// An object of cuDNN's graph API. The caller sets attributes, calls Finalize, and can then read
/// attributes. Objects that an attribute refers to must live as long. All methods throw Error
/// kSystem with cuDNN's message. Movable; one thread at a time.
///
///   BackendDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
///   tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, int64_t{1});
///   ...
///   tensor.Finalize();
class BackendDescriptor {
 public:
  /// The library must have the graph API (Cudnn::graph).
  explicit BackendDescriptor(cudnnBackendDescriptorType_t type);
  ~BackendDescriptor();
  BackendDescriptor(BackendDescriptor&& other) noexcept;
  BackendDescriptor& operator=(BackendDescriptor&& other) noexcept;

  template <typename T>
  void Set(cudnnBackendAttributeName_t name, const T& value) {
    SetElements(name, BackendType<T>::kValue, 1, &value);
  }
  template <typename T>
  void Set(cudnnBackendAttributeName_t name, const std::vector<T>& values) {
    SetElements(name, BackendType<T>::kValue, static_cast<int64_t>(values.size()), values.data());
  }
  void Set(cudnnBackendAttributeName_t name, const BackendDescriptor& other);
  void Finalize();

  template <typename T>
  T Get(cudnnBackendAttributeName_t name) const {
    T value{};
    GetElements(name, BackendType<T>::kValue, 1, &value);
    return value;
  }
  template <typename T>
  std::vector<T> GetAll(cudnnBackendAttributeName_t name) const {
    std::vector<T> values(
        static_cast<size_t>(GetElements(name, BackendType<T>::kValue, 0, nullptr)));
    const auto most = static_cast<int64_t>(values.size());
    values.resize(
        static_cast<size_t>(GetElements(name, BackendType<T>::kValue, most, values.data())));
    return values;
  }
  /// Returns at most `most` descriptors, all of type `type`.
  std::vector<BackendDescriptor> GetDescriptors(
      cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type, size_t most) const;

  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  void SetElements(
      cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
      const void* values);
  // Reads at most `most` elements into `values` and returns the number of elements read. If `most`
  // is 0, returns the number of elements that exist.
  int64_t GetElements(
      cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
      void* values) const;

  cudnnBackendDescriptorType_t type_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_CUDNN_H_
