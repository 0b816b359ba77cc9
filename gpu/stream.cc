#include "gpu/stream.h"

#include <utility>
#include <vector>

#include "gpu/driver.h"

namespace dtrun::gpu {

Stream::Stream(const Device& device, Priority priority) : device_(device) {
  const DeviceScope scope(device);
  const Driver& driver = Driver::Get();
  int least = 0, greatest = 0;
  Check(driver.cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
  Check(
      driver.cuStreamCreateWithPriority(
          &stream_, CU_STREAM_NON_BLOCKING, priority == Priority::kHigh ? greatest : least),
      "cuStreamCreateWithPriority");
}

Stream::~Stream() {
  const DeviceScope scope(device_);
  Driver::Get().cuStreamDestroy(stream_);
}

void Stream::Synchronize() const {
  const DeviceScope scope(device_);
  Check(Driver::Get().cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

Event::Event(const Device& device, Timing timing) : device_(device) {
  const DeviceScope scope(device);
  Check(
      Driver::Get().cuEventCreate(
          &event_, timing == Timing::kOn ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING),
      "cuEventCreate");
}

Event::~Event() {
  const DeviceScope scope(device_);
  Driver::Get().cuEventDestroy(event_);
}

void Event::Record(CUstream stream) {
  const DeviceScope scope(device_);
  Check(Driver::Get().cuEventRecord(event_, stream), "cuEventRecord");
}

void Event::Delay(CUstream stream) const {
  const DeviceScope scope(device_);
  Check(
      Driver::Get().cuStreamWaitEvent(stream, event_, CU_EVENT_WAIT_DEFAULT), "cuStreamWaitEvent");
}

bool Event::Reached() const {
  const DeviceScope scope(device_);
  const CUresult result = Driver::Get().cuEventQuery(event_);
  if (result == CUDA_ERROR_NOT_READY) return false;
  Check(result, "cuEventQuery");
  return true;
}

void Event::Synchronize() const {
  const DeviceScope scope(device_);
  Check(Driver::Get().cuEventSynchronize(event_), "cuEventSynchronize");
}

double Event::MillisecondsSince(const Event& begin) const {
  const DeviceScope scope(device_);
  float milliseconds = 0;
  Check(
      Driver::Get().cuEventElapsedTime(&milliseconds, begin.event_, event_), "cuEventElapsedTime");
  return static_cast<double>(milliseconds);
}

bool IsCapturing(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  Check(Driver::Get().cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  return status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

namespace {

// Whether the device reads and writes the memory directly.
bool IsPinned(const void* host) {
  unsigned type = 0;
  return Driver::Get().cuPointerGetAttribute(
             &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, AddressOf(host)) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_HOST;
}

// A copy from or to pageable memory waits for the stream inside the driver, under a lock that all
// calls of the process for this GPU need. If the stream waits for another thread, and that thread
// calls the driver, both wait forever. So the wait comes before the copy, without the lock.
void PrepareCopy(const void* host, CUstream stream) {
  if (IsPinned(host) || IsCapturing(stream)) return;
  Check(Driver::Get().cuStreamSynchronize(stream), "cuStreamSynchronize");
}

}  // namespace

void CopyToDevice(CUdeviceptr to, const void* from, uint64_t bytes, CUstream stream) {
  if (bytes == 0) return;
  PrepareCopy(from, stream);
  Check(Driver::Get().cuMemcpyHtoDAsync(to, from, bytes, stream), "cuMemcpyHtoDAsync");
}

void CopyToHost(void* to, CUdeviceptr from, uint64_t bytes, CUstream stream) {
  if (bytes == 0) return;
  PrepareCopy(to, stream);
  Check(Driver::Get().cuMemcpyDtoHAsync(to, from, bytes, stream), "cuMemcpyDtoHAsync");
}

void CopyOnDevice(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream) {
  if (bytes == 0 || to == from) return;
  Check(Driver::Get().cuMemcpyDtoDAsync(to, from, bytes, stream), "cuMemcpyDtoDAsync");
}

void Copy(const Buffer& from, const Buffer& to, CUstream stream) {
  if (from.device < 0) return CopyToDevice(AddressOf(to.data), from.data, from.bytes(), stream);
  if (to.device < 0) return CopyToHost(to.data, AddressOf(from.data), from.bytes(), stream);
  CopyOnDevice(AddressOf(to.data), AddressOf(from.data), from.bytes(), stream);
}

void Fill(CUdeviceptr to, uint8_t value, uint64_t bytes, CUstream stream) {
  if (bytes == 0) return;
  Check(Driver::Get().cuMemsetD8Async(to, value, bytes, stream), "cuMemsetD8Async");
}

namespace {

struct AllKernels {
  std::mutex mutex;
  std::vector<Kernels*> list;
};

AllKernels& All() {
  static auto* const all = new AllKernels;
  return *all;
}

}  // namespace

Kernels::Kernels(const void* image, std::string name) : image_(image), name_(std::move(name)) {
  const std::lock_guard lock(All().mutex);
  All().list.push_back(this);
}

void Kernels::LoadAll(const Device& device) {
  const DeviceScope scope(device);
  const std::lock_guard lock(All().mutex);
  for (Kernels* const kernels : All().list) {
    const std::lock_guard own_lock(kernels->mutex_);
    kernels->ModuleOf(device);
  }
}

CUfunction Kernels::Find(const Device& device, const char* kernel) {
  std::lock_guard lock(mutex_);
  CUfunction& function = functions_[{device.index(), kernel}];
  if (function != nullptr) return function;
  const DeviceScope scope(device);
  Check(
      Driver::Get().cuModuleGetFunction(&function, ModuleOf(device), kernel),
      (name_ + ": looking for " + kernel).c_str());
  return function;
}

// With the lock and the scope of the device.
CUmodule Kernels::ModuleOf(const Device& device) {
  CUmodule& known = modules_[device.index()];
  if (known != nullptr) return known;
  const Driver& driver = Driver::Get();
  const std::string loading = "loading " + name_ + " on " + device.name();
  CUmodule module = nullptr;
  Check(driver.cuModuleLoadData(&module, image_), loading.c_str());
  unsigned count = 0;
  Check(driver.cuModuleGetFunctionCount(&count, module), loading.c_str());
  std::vector<CUfunction> functions(count);
  Check(driver.cuModuleEnumerateFunctions(functions.data(), count, module), loading.c_str());
  for (const CUfunction function : functions) Check(driver.cuFuncLoad(function), loading.c_str());
  return known = module;
}

void Kernels::LaunchWithParameter(
    const Device& device, const char* kernel, const Shape& shape, CUstream stream,
    const void* parameter) {
  if (shape.blocks == 0 || shape.blocks_y == 0) return;
  const CUfunction function = Find(device, kernel);
  const DeviceScope scope(device);
  const Driver& driver = Driver::Get();
  void* parameters[] = {const_cast<void*>(parameter)};
  const CUresult result = driver.cuLaunchKernel(
      function, shape.blocks, shape.blocks_y, 1, shape.threads, 1, 1, 0, stream, parameters,
      nullptr);
  if (result != CUDA_SUCCESS) Check(result, (std::string("launching ") + kernel).c_str());
}

}  // namespace dtrun::gpu
