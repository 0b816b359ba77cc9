#ifndef DTRUN_MODELS_GPU_BACKEND_DESCRIPTOR_H_
#define DTRUN_MODELS_GPU_BACKEND_DESCRIPTOR_H_

#include <cstdint>
#include <vector>

#include "models/gpu/cudnn.h"

namespace dtrun::models {

/// The type by which cuDNN's graph API knows values of T.
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

/// An object of cuDNN's graph API: it is given attributes, then finalized, and can then be asked
/// for attributes. What it refers to lives as long. All throw Error kSystem with cuDNN's words.
/// Movable; one thread at a time.
///
///   BackendDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
///   tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, int64_t{1});
///   ...
///   tensor.Finalize();
class BackendDescriptor {
 public:
  /// Of a library that has the graph API.
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
  /// At most `most`, all of `type`.
  std::vector<BackendDescriptor> GetDescriptors(
      cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type, size_t most) const;

  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  void SetElements(
      cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
      const void* values);
  // How many there are of `most`; of 0: how many there are.
  int64_t GetElements(
      cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
      void* values) const;

  cudnnBackendDescriptorType_t type_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

}  // namespace dtrun::models

#endif
