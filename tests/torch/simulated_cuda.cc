#include "tests/torch/simulated_cuda.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"

namespace dtrun::testing {
namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;
using c10::impl::DeviceGuardImplInterface;

thread_local DeviceIndex current_device = 0;
thread_local c10::StreamId current_stream = 0;  // 1: the stream of OwnStream

const gpu::Device& GpuOf(DeviceIndex device) { return gpu::Device::Get(device); }

CUstream DriverStreamOf(const Stream& stream) {
  if (stream.id() == 0) return nullptr;
  static const auto own = [] {
    std::vector<std::unique_ptr<gpu::Stream>> made;
    for (int i = 0; i < gpu::DeviceCount(); ++i)
      made.push_back(std::make_unique<gpu::Stream>(gpu::Device::Get(i)));
    return new auto(std::move(made));
  }();
  return (*own)[static_cast<size_t>(stream.device_index())]->get();
}

// --- LibTorch's interface to devices and their streams -------------------------------------------

struct Guard final : DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    return {type(), std::exchange(current_device, device.index())};
  }
  Device getDevice() const override { return {type(), current_device}; }
  void setDevice(Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(Device device) const noexcept override {
    current_device = device.index();
  }
  Stream getStream(Device device) const noexcept override {
    return Stream(Stream::UNSAFE, device, current_stream);
  }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream exchangeStream(Stream stream) const noexcept override {
    return Stream(Stream::UNSAFE, stream.device(), std::exchange(current_stream, stream.id()));
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(gpu::DeviceCount());
  }
  void record(
      void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new gpu::Event(GpuOf(stream.device_index()));
    static_cast<gpu::Event*>(*event)->Record(DriverStreamOf(stream));
  }
  void block(void* event, const Stream& stream) const override {
    static_cast<gpu::Event*>(event)->Delay(DriverStreamOf(stream));
  }
  bool queryEvent(void* event) const override { return static_cast<gpu::Event*>(event)->Reached(); }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<gpu::Event*>(event);
  }
};

// Without these hooks, autograd assumes that there are no streams to return to. LibTorch finds the
// hooks by name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void initCUDA() const override {}
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(int64_t) const override { return true; }
  int64_t current_device() const override { return testing::current_device; }
  int getNumGPUs() const override { return 0; }  // no GPU with a random number generator
};

// Results that are still being copied to the GPU, in the stream of OwnStream.
std::vector<Tensor>& OnTheirWay() {
  thread_local auto* const results = new std::vector<Tensor>;
  return *results;
}

// Waits until all work in the current streams is done.
void WaitForStreams() {
  for (DeviceIndex device = 0; device < Guard().deviceCount(); ++device) {
    gpu::Event event(GpuOf(device));
    event.Record(DriverStreamOf(Guard().getStream({DeviceType::CUDA, device})));
    event.Synchronize();
  }
  OnTheirWay().clear();
}

// --- Memory --------------------------------------------------------------------------------------

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) const override {
    const Device device = Guard().getDevice();
    if (bytes == 0) return {nullptr, device};
    auto* memory = new gpu::DeviceMemory(GpuOf(current_device), bytes);
    return {
        memory->as<void>(), memory,
        [](void* owner) { delete static_cast<gpu::DeviceMemory*>(owner); }, device};
  }
};

constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::CUDA};
Allocator allocator;

Tensor Empty(
    at::IntArrayRef sizes, std::optional<at::IntArrayRef> strides, at::ScalarType type,
    c10::optional<Device> device) {
  const DeviceIndex before = current_device;
  if (device && device->has_index()) current_device = device->index();
  const Tensor made =
      strides ? Tensor(at::detail::empty_strided_generic(sizes, *strides, &allocator, kKeys, type))
              : Tensor(at::detail::empty_generic(sizes, &allocator, kKeys, type, c10::nullopt));
  current_device = before;
  return made;
}

// --- Operations ----------------------------------------------------------------------------------

// Pairs of tensors with equal elements: a tensor of an operation on the GPU and its twin for the
// CPU kernel.
class Twins {
 public:
  explicit Twins(Device device = Guard().getDevice()) : device_(device) {}

  Tensor OnCpu(const Tensor& tensor, bool is_written = false) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    device_ = tensor.device();
    const auto options = tensor.options().device(at::kCPU).requires_grad(false);
    if (tensor.numel() == 0) {  // the operation may resize it
      twins_.emplace_back(tensor, at::empty(tensor.sizes(), options));
      return twins_.back().second;
    }
    const Tensor twin = at::for_blob(tensor.data_ptr(), tensor.sizes())
                            .strides(tensor.strides())
                            .options(options)
                            .target_device(Device(at::kCPU))
                            .make_tensor();
    if (is_written && current_stream != 0) {
      Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(), options);
      std::memcpy(copy.data_ptr(), tensor.data_ptr(), copy.storage().nbytes());
      written_.emplace_back(tensor, copy);
    }
    twins_.emplace_back(tensor, is_written && current_stream != 0 ? written_.back().second : twin);
    return twins_.back().second;
  }

  // Copies the tensors that the operation has written to the GPU.
  void BringWritten() const {
    for (const auto& [tensor, twin] : written_) Bring(tensor, twin, twin.storage().nbytes());
  }

  // The GPU tensor of a result: an argument of the operation, a view of an argument or a new
  // tensor.
  Tensor OnGpu(const Tensor& result) const {
    if (!result.defined() || result.is_cuda()) return result;
    for (const auto& [tensor, twin] : twins_) {
      if (!twin.is_same(result)) continue;
      if (tensor.sizes() != result.sizes()) Become(tensor, New(result));
      return tensor;
    }
    for (const auto& [tensor, twin] : twins_)
      if (result.storage().data() == twin.storage().data() && twin.numel() > 0)
        return PartOf(tensor, result);
    return New(result);
  }

 private:
  Tensor New(const Tensor& result) const {
    const Tensor made = Empty(result.sizes(), result.strides(), result.scalar_type(), device_);
    if (made.storage().nbytes() > 0) Bring(made, result, made.storage().nbytes());
    return made;
  }

  // Copies at once in the default stream. In the stream of OwnStream the copy takes time, so that a
  // read in the wrong order finds the old values.
  void Bring(const Tensor& to, const Tensor& result, size_t bytes) const {
    if (current_stream == 0) {
      std::memcpy(to.data_ptr(), result.data_ptr(), bytes);
      return;
    }
    static auto* const slow = new gpu::DeviceMemory(GpuOf(device_.index()), 8 << 20);
    const gpu::DeviceScope scope(GpuOf(device_.index()));
    const CUstream stream = DriverStreamOf(Guard().getStream(device_));
    gpu::CopyOnDevice(slow->address(), slow->address() + (4 << 20), 4 << 20, stream);
    gpu::CopyOnDevice(
        gpu::AddressOf(to.data_ptr()), gpu::AddressOf(result.data_ptr()), bytes, stream);
    OnTheirWay().push_back(result);
  }

  static void Become(const Tensor& tensor, const Tensor& other) {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(other.storage());
    impl->set_sizes_and_strides(other.sizes(), other.strides());
  }

  static Tensor PartOf(const Tensor& tensor, const Tensor& result) {
    Tensor part = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
    c10::TensorImpl* impl = part.unsafeGetTensorImpl();
    impl->set_storage_offset(tensor.storage_offset() + result.storage_offset());
    impl->set_sizes_and_strides(result.sizes(), result.strides());
    return part;
  }

  std::vector<std::pair<Tensor, Tensor>> twins_, written_;
  Device device_;
};

template <typename Convert>
void ConvertAll(c10::IValue& value, const Convert& convert) {
  if (value.isTensor()) {
    value = convert(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(convert(tensor));
    value = list;
  } else if (value.isOptionalTensorList()) {
    c10::List<c10::optional<Tensor>> list;
    for (const c10::optional<Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? c10::optional<Tensor>(convert(*tensor)) : tensor);
    value = list;
  }
}

bool MakesView(const c10::FunctionSchema& schema) {
  const auto& results = schema.returns();
  return !results.empty() && results[0].alias_info() != nullptr &&
         !results[0].alias_info()->isWrite();
}

// Runs any operation that has no kernel below.
void Compute(const c10::OperatorHandle& operation, ::torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  if (!MakesView(schema)) WaitForStreams();
  Twins twins;
  const size_t first = stack->size() - schema.arguments().size();
  for (size_t i = first; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isDevice() && value.toDevice().is_cuda()) {
      twins = Twins(value.toDevice());
      value = Device(at::kCPU);
    }
    const auto* alias = schema.arguments()[i - first].alias_info();
    const bool is_written = alias != nullptr && alias->isWrite();
    ConvertAll(value, [&](const Tensor& tensor) { return twins.OnCpu(tensor, is_written); });
  }
  operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  twins.BringWritten();
  const size_t results = schema.returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i)
    ConvertAll((*stack)[i], [&](const Tensor& tensor) { return twins.OnGpu(tensor); });
}

Tensor EmptyInFormat(
    at::IntArrayRef sizes, c10::optional<at::ScalarType> type, c10::optional<at::Layout>,
    c10::optional<Device> device, c10::optional<bool>, c10::optional<at::MemoryFormat>) {
  return Empty(sizes, {}, type.value_or(at::kFloat), device);
}

Tensor EmptyStrided(
    at::IntArrayRef sizes, at::IntArrayRef strides, c10::optional<at::ScalarType> type,
    c10::optional<at::Layout>, c10::optional<Device> device, c10::optional<bool>) {
  return Empty(sizes, strides, type.value_or(at::kFloat), device);
}

Tensor& SetStorage(
    Tensor& tensor, c10::Storage storage, int64_t offset, at::IntArrayRef sizes,
    at::IntArrayRef strides) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(sizes, strides);
  return tensor;
}

Tensor& Copy(Tensor& to, const Tensor& from, bool) {
  WaitForStreams();
  Twins twins;
  twins.OnCpu(to).copy_(twins.OnCpu(from));
  return to;
}

}  // namespace
}  // namespace dtrun::testing

namespace at {
using dtrun::testing::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

namespace dtrun::testing {

void SimulateCuda() {
  static Guard* const guard = new Guard;
  static const c10::impl::DeviceGuardImplRegistrar registrar(DeviceType::CUDA, guard);
  c10::SetAllocator(DeviceType::CUDA, &allocator);
  static ::torch::Library all(
      ::torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  all.fallback(::torch::CppFunction::makeFromBoxedFunction<&Compute>());
  static ::torch::Library aten(
      ::torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  aten.impl("empty.memory_format", &EmptyInFormat);
  aten.impl("empty_strided", &EmptyStrided);
  aten.impl("copy_", &Copy);
  aten.impl("set_.source_Storage_storage_offset", &SetStorage);
}

OwnStream::OwnStream()
    : before_(Guard().exchangeStream(Stream(Stream::UNSAFE, Device(at::kCUDA, 0), 1))) {}
OwnStream::~OwnStream() { Guard().exchangeStream(before_); }

}  // namespace dtrun::testing
