#include "models/gpu/cudnn.h"

#include <dtrun/error.h>

#include <algorithm>
#include <utility>

#include "models/message_text.h"

namespace dtrun::models {

namespace {

std::optional<CudnnGraph> LoadGraph(const gpu::LoadedLibrary& library) {
  CudnnGraph functions;
  try {
    DTRUN_FOR_EACH_CUDNN_GRAPH_FUNCTION(DTRUN_FIND_IN_LIBRARY)
  } catch (const Error&) {
    return std::nullopt;
  }
  return functions;
}

Cudnn Load() {
  const gpu::LoadedLibrary library({"libcudnn.so.9", "libcudnn.so"});
  Cudnn functions;
  DTRUN_FOR_EACH_CUDNN_FUNCTION(DTRUN_FIND_IN_LIBRARY)
  functions.graph = LoadGraph(library);
  return functions;
}

}  // namespace

const Cudnn& Cudnn::Get() {
  static const Cudnn loaded = Load();
  return loaded;
}

void Cudnn::Check(cudnnStatus_t status, const char* call) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char details[1024] = "";
  if (graph) graph->cudnnGetLastErrorString(details, sizeof details);
  const char* const between = *details == '\0' ? "" : ": ";
  throw Error(
      ErrorCode::kSystem, Text(call, " failed: ", cudnnGetErrorString(status), between, details));
}

cudnnDataType_t CudnnTypeOf(DType dtype) {
  if (dtype == DType::kBF16) return CUDNN_DATA_BFLOAT16;
  return dtype == DType::kF16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

CudnnHandle::CudnnHandle(const gpu::Stream& stream) : stream_(stream) {
  const Cudnn& cudnn = Cudnn::Get();
  const gpu::DeviceScope scope(stream_.device());
  cudnn.Check(cudnn.cudnnCreate(&handle_), "cudnnCreate");
  const cudnnStatus_t status =
      cudnn.cudnnSetStream(handle_, reinterpret_cast<cudaStream_t>(stream_.get()));
  if (status != CUDNN_STATUS_SUCCESS) cudnn.cudnnDestroy(handle_);
  cudnn.Check(status, "cudnnSetStream");
}

CudnnHandle::~CudnnHandle() {
  const gpu::DeviceScope scope(stream_.device());
  Cudnn::Get().cudnnDestroy(handle_);
}

namespace {

const CudnnGraph& Functions() { return *Cudnn::Get().graph; }

// The message contains the values that `type` and `name` have in cuDNN's enumerations
// cudnnBackendDescriptorType_t and cudnnBackendAttributeName_t.
void Check(cudnnStatus_t status, const char* call, int type, int name = -1) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const std::string attribute = name < 0 ? "" : Text(", attribute ", name);
  Cudnn::Get().Check(status, Text(call, " (descriptor type ", type, attribute, ")").c_str());
}

}  // namespace

BackendDescriptor::BackendDescriptor(cudnnBackendDescriptorType_t type) : type_(type) {
  Check(
      Functions().cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor",
      type);
}

BackendDescriptor::~BackendDescriptor() {
  if (descriptor_ != nullptr) Functions().cudnnBackendDestroyDescriptor(descriptor_);
}

BackendDescriptor::BackendDescriptor(BackendDescriptor&& other) noexcept
    : type_(other.type_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}

BackendDescriptor& BackendDescriptor::operator=(BackendDescriptor&& other) noexcept {
  std::swap(type_, other.type_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void BackendDescriptor::Set(cudnnBackendAttributeName_t name, const BackendDescriptor& other) {
  SetElements(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.descriptor_);
}

void BackendDescriptor::Finalize() {
  Check(Functions().cudnnBackendFinalize(descriptor_), "cudnnBackendFinalize", type_);
}

void BackendDescriptor::SetElements(
    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
    const void* values) {
  Check(
      Functions().cudnnBackendSetAttribute(descriptor_, name, type, count, values),
      "cudnnBackendSetAttribute", type_, name);
}

int64_t BackendDescriptor::GetElements(
    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
    void* values) const {
  int64_t count = 0;
  Check(
      Functions().cudnnBackendGetAttribute(descriptor_, name, type, most, &count, values),
      "cudnnBackendGetAttribute", type_, name);
  return most == 0 ? count : std::min(count, most);
}

// cuDNN fills descriptors that the caller has created. So this function creates `most` descriptors
// and drops those that cuDNN did not fill.
std::vector<BackendDescriptor> BackendDescriptor::GetDescriptors(
    cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type, size_t most) const {
  std::vector<BackendDescriptor> descriptors;
  std::vector<cudnnBackendDescriptor_t> elements;
  for (size_t i = 0; i < most; ++i) elements.push_back(descriptors.emplace_back(type).get());
  const int64_t count =
      GetElements(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(most), elements.data());
  while (static_cast<int64_t>(descriptors.size()) > count) descriptors.pop_back();
  return descriptors;
}

}  // namespace dtrun::models
