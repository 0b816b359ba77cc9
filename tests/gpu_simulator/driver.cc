// The functions of libcuda.so.1 that dtrun calls, for a machine without a GPU. To find mistakes,
// some checks are stricter than a real driver's. During a capture, a thread may not wait, allocate
// memory or load a module. Most calls about memory, streams or kernels need a current context.

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/gpu_simulator/block.h"
#include "tests/gpu_simulator/memory.h"
#include "tests/gpu_simulator/stream.h"

using dtrun::gpu_simulator::Capture;
using dtrun::gpu_simulator::Event;
using dtrun::gpu_simulator::kMillisecondsOfWork;
using dtrun::gpu_simulator::Known;
using dtrun::gpu_simulator::Launch;
using dtrun::gpu_simulator::Stream;
using dtrun::gpu_simulator::Task;

#define EXPORT extern "C" __attribute__((visibility("default")))

struct CUctx_st {
  int device;
  std::shared_ptr<Stream> default_stream;
  // Shared pointers: cuCtxSynchronize waits for a stream that another thread may destroy.
  std::set<std::shared_ptr<Stream>> streams;
  std::mutex mutex;
  std::mutex calls;  // of the driver's calls that enqueue
};
struct CUstream_st {
  std::shared_ptr<Stream> stream;
  CUcontext context;
};
struct CUevent_st {
  std::shared_ptr<Event> event = std::make_shared<Event>();
  bool timing;
};
struct CUmod_st {
  CUcontext context;
};
struct CUfunc_st {
  Known known;
  std::string name;
  int shared_bytes = 48 << 10;
};
struct CUgraph_st {
  std::vector<Task> tasks;
};
struct CUgraphExec_st {
  std::shared_ptr<std::vector<Task>> tasks;
};

namespace {

int DeviceCount() {
  const char* text = std::getenv("DTRUN_SIMULATED_GPUS");
  return text == nullptr ? 1 : std::atoi(text);
}

std::mutex contexts_mutex;
std::map<int, CUctx_st*>& Contexts() {
  static auto* const contexts = new std::map<int, CUctx_st*>;
  return *contexts;
}

thread_local std::vector<CUcontext> current;
thread_local int captures = 0;  // captures that this thread has begun
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool NoContext() { return current.empty() || current.back() == nullptr; }

Stream& StreamOf(CUstream stream) {
  if (stream != nullptr) return *stream->stream;
  CUcontext context = current.back();
  std::lock_guard lock(context->mutex);
  if (context->default_stream == nullptr) {
    context->default_stream = std::make_shared<Stream>(context->device);
    context->streams.insert(context->default_stream);
  }
  return *context->default_stream;
}

void Enqueue(CUstream stream, Task task) {
  std::lock_guard lock(current.back()->calls);
  StreamOf(stream).Enqueue(std::move(task));
}

void CopyLater(CUstream stream, void* to, const void* from, size_t bytes) {
  Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}

std::mutex pinned_mutex;
std::map<uintptr_t, size_t>& PinnedBytes() {  // by address
  static auto* const pinned = new std::map<uintptr_t, size_t>;
  return *pinned;
}

bool IsPinned(uintptr_t address) {
  std::lock_guard lock(pinned_mutex);
  const auto after = PinnedBytes().upper_bound(address);
  if (after == PinnedBytes().begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return address < begin + bytes;
}

// As on a GPU, a copy from or to pageable memory waits for the stream, and other threads wait for
// it before they can enqueue anything on the device.
void CopyHost(CUstream stream, void* to, const void* from, size_t bytes, const void* on_host) {
  Stream& target = StreamOf(stream);
  if (IsPinned(reinterpret_cast<uintptr_t>(on_host)) || target.capture != nullptr) {
    CopyLater(stream, to, from, bytes);
    return;
  }
  std::lock_guard lock(current.back()->calls);
  target.Enqueue([=] { std::memcpy(to, from, bytes); });
  target.Synchronize();
}

constexpr unsigned kMostParameterBytes = 4096;  // the limit of compute capability 6

void* Host(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

struct Shareable {
  int file, device;
  uint64_t bytes;
  bool own;
};

}  // namespace

#define NEED_CONTEXT \
  if (NoContext()) return CUDA_ERROR_INVALID_CONTEXT
#define NOT_WHILE_CAPTURING                                           \
  if (captures > 0 && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) \
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

EXPORT CUresult cuInit(unsigned) { return DeviceCount() > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }

EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
      *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
      break;
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"; break;
    default: *name = nullptr;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "said by the simulated driver";
  return CUDA_SUCCESS;
}

// ---- devices and contexts

EXPORT CUresult cuDeviceGetCount(int* count) {
  *count = DeviceCount();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int index) {
  if (index < 0 || index >= DeviceCount()) return CUDA_ERROR_INVALID_DEVICE;
  *device = index;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
  std::snprintf(name, static_cast<size_t>(bytes), "simulated GPU");
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char* id, int bytes, CUdevice device) {
  std::snprintf(id, static_cast<size_t>(bytes), "0000:%02X:00.0", device + 1);
  return CUDA_SUCCESS;
}

// DTRUN_SIMULATED_MPS=0 simulates a GPU whose processes take turns.
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 1 << 20; break;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED: {
      const char* mps = std::getenv("DTRUN_SIMULATED_MPS");
      *value = mps == nullptr || std::string(mps) != "0";
      break;
    }
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  *bytes = dtrun::gpu_simulator::TotalBytes();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
  *can = 1;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  std::lock_guard lock(contexts_mutex);
  CUctx_st*& made = Contexts()[device];
  if (made == nullptr)
    made = new CUctx_st{
        .device = device, .default_stream = nullptr, .streams = {}, .mutex = {}, .calls = {}};
  *context = made;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }

EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
  current.push_back(context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext* context) {
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = current.back();
  current.pop_back();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current.empty() ? nullptr : current.back();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize() {
  NEED_CONTEXT;
  NOT_WHILE_CAPTURING;
  CUcontext context = current.back();
  std::vector<std::shared_ptr<Stream>> streams;
  {
    std::lock_guard lock(context->mutex);
    streams.assign(context->streams.begin(), context->streams.end());
  }
  for (const auto& stream : streams) stream->Synchronize();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

// ---- memory

EXPORT CUresult cuMemGetInfo(size_t* free, size_t* total) {
  NEED_CONTEXT;
  *total = dtrun::gpu_simulator::TotalBytes();
  *free = *total - dtrun::gpu_simulator::TakenBytes(current.back()->device);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  NEED_CONTEXT;
  NOT_WHILE_CAPTURING;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *address = dtrun::gpu_simulator::Allocate(current.back()->device, bytes);
  return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree(CUdeviceptr address) {
  NEED_CONTEXT;
  NOT_WHILE_CAPTURING;
  cuCtxSynchronize();
  return dtrun::gpu_simulator::Free(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemHostAlloc(void** data, size_t bytes, unsigned) {
  NEED_CONTEXT;
  NOT_WHILE_CAPTURING;
  *data = std::malloc(bytes);
  if (*data == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(pinned_mutex);
  PinnedBytes()[reinterpret_cast<uintptr_t>(*data)] = bytes;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void* data) {
  NEED_CONTEXT;
  NOT_WHILE_CAPTURING;
  cuCtxSynchronize();
  {
    std::lock_guard lock(pinned_mutex);
    PinnedBytes().erase(reinterpret_cast<uintptr_t>(data));
  }
  std::free(data);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  NEED_CONTEXT;
  CopyHost(stream, Host(to), from, bytes, from);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  NEED_CONTEXT;
  CopyHost(stream, to, Host(from), bytes, to);
  return CUDA_SUCCESS;
}

EXPORT CUresult
cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE || !IsPinned(address))
    return CUDA_ERROR_INVALID_VALUE;
  *static_cast<unsigned*>(value) = CU_MEMORYTYPE_HOST;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  NEED_CONTEXT;
  CopyLater(stream, Host(to), Host(from), bytes);
  return CUDA_SUCCESS;
}

EXPORT CUresult
cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  NEED_CONTEXT;
  Enqueue(stream, [=] { std::memset(Host(to), value, bytes); });
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  NEED_CONTEXT;
  Enqueue(stream, [=] { std::fill_n(static_cast<unsigned*>(Host(to)), count, value); });
  return CUDA_SUCCESS;
}

// ---- memory shared between processes

EXPORT CUresult cuMemGetAllocationGranularity(
    size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = dtrun::gpu_simulator::kGranularity;
  return CUDA_SUCCESS;
}

EXPORT CUresult
cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  if (bytes == 0 || bytes % dtrun::gpu_simulator::kGranularity != 0)
    return CUDA_ERROR_INVALID_VALUE;
  void* place = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(place);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return munmap(Host(address), bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemCreate(
    CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
    unsigned long long) {
  NOT_WHILE_CAPTURING;
  if (bytes == 0 || bytes % dtrun::gpu_simulator::kGranularity != 0 ||
      properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  const int device = properties->location.id;
  if (!dtrun::gpu_simulator::Take(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = dtrun::gpu_simulator::NewFile(bytes);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle =
      reinterpret_cast<CUmemGenericAllocationHandle>(new Shareable{file, device, bytes, true});
  return CUDA_SUCCESS;
}

// On a GPU, the last mapping frees the memory. Here the bytes are free again at once.
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  auto* shareable = reinterpret_cast<Shareable*>(handle);
  if (shareable->own) dtrun::gpu_simulator::GiveBack(shareable->device, shareable->bytes);
  close(shareable->file);
  delete shareable;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(
    CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
    unsigned long long) {
  const auto* shareable = reinterpret_cast<Shareable*>(handle);
  if (offset != 0 || bytes > shareable->bytes) return CUDA_ERROR_INVALID_VALUE;
  void* place = mmap(Host(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, shareable->file, 0);
  if (place == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  void* place = mmap(
      Host(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
      0);
  return place == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult
cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  if (count == 0 || access[0].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    return CUDA_ERROR_INVALID_VALUE;
  return mprotect(Host(address), bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemExportToShareableHandle(
    void* exported, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
    unsigned long long) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int*>(exported) =
      fcntl(reinterpret_cast<Shareable*>(handle)->file, F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}

// DTRUN_SIMULATED_IPC=0 simulates a machine that isolates processes from each other.
EXPORT CUresult cuMemImportFromShareableHandle(
    CUmemGenericAllocationHandle* handle, void* exported, CUmemAllocationHandleType type) {
  const char* allowed = std::getenv("DTRUN_SIMULATED_IPC");
  if (allowed != nullptr && std::string(allowed) == "0") return CUDA_ERROR_INVALID_CONTEXT;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int file =
      fcntl(static_cast<int>(reinterpret_cast<intptr_t>(exported)), F_DUPFD_CLOEXEC, 0);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(
      new Shareable{file, 0, static_cast<uint64_t>(status.st_size), false});
  return CUDA_SUCCESS;
}

// ---- streams, events, graphs

EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned, int) {
  NEED_CONTEXT;
  CUcontext context = current.back();
  *stream = new CUstream_st{std::make_shared<Stream>(context->device), context};
  std::lock_guard lock(context->mutex);
  context->streams.insert((*stream)->stream);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream stream) {
  {
    std::lock_guard lock(stream->context->mutex);
    stream->context->streams.erase(stream->stream);
  }
  delete stream;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  NEED_CONTEXT;
  NOT_WHILE_CAPTURING;
  StreamOf(stream).Synchronize();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
  NEED_CONTEXT;
  NOT_WHILE_CAPTURING;
  return StreamOf(stream).Idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  NEED_CONTEXT;
  StreamOf(stream).Delay(event->event);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  NEED_CONTEXT;
  *status = stream != nullptr && stream->stream->capture != nullptr
                ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  if (stream == nullptr || stream->stream->capture != nullptr)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  stream->stream->capture = std::make_shared<Capture>();
  stream->stream->capture->origin = stream->stream.get();
  ++captures;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->stream->capture;
  if (capture == nullptr || capture->origin != stream->stream.get())
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  --captures;
  bool all_joined = true;
  for (auto& [forked, tasks] : capture->enqueued) {
    forked->capture = nullptr;
    all_joined = all_joined && (forked == capture->origin || capture->joined[forked] >= tasks);
  }
  stream->stream->capture = nullptr;
  if (!all_joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *graph = new CUgraph_st{std::move(capture->tasks)};
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  NEED_CONTEXT;
  Enqueue(stream, [=] { function(data); });
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
  NEED_CONTEXT;
  *event = new CUevent_st;
  (*event)->timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy(CUevent event) {
  delete event;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  NEED_CONTEXT;
  StreamOf(stream).Record(event->event);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event) {
  NOT_WHILE_CAPTURING;
  std::lock_guard lock(event->event->mutex);
  return event->event->reached >= event->event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
  NOT_WHILE_CAPTURING;
  uint64_t recorded;
  {
    std::lock_guard lock(event->event->mutex);
    recorded = event->event->recorded;
  }
  event->event->WaitFor(recorded);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  if (!begin->timing || !end->timing) return CUDA_ERROR_INVALID_HANDLE;
  const auto pieces = static_cast<int64_t>(end->event->work - begin->event->work);
  *milliseconds = kMillisecondsOfWork * static_cast<float>(pieces);
  return CUDA_SUCCESS;
}

EXPORT CUresult
cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  *executable = new CUgraphExec_st{std::make_shared<std::vector<Task>>(graph->tasks)};
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  NEED_CONTEXT;
  const auto& tasks = executable->tasks;
  std::lock_guard lock(current.back()->calls);
  StreamOf(stream).Enqueue(
      [tasks] {
        for (const Task& task : *tasks) task();
      },
      tasks->size());
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  delete graph;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable) {
  delete executable;
  return CUDA_SUCCESS;
}

// ---- kernels

EXPORT CUresult cuModuleLoadData(CUmodule* module, const void*) {
  NEED_CONTEXT;
  NOT_WHILE_CAPTURING;
  cuCtxSynchronize();  // as the driver does, at least the one for an H100 (580.159)
  *module = new CUmod_st{current.back()};
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
  delete module;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  const Known known = dtrun::gpu_simulator::FindKernel(name);
  if (known.kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
  *function = new CUfunc_st{known, name};
  return CUDA_SUCCESS;
}

// All functions are loaded already.
EXPORT CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule) {
  *count = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleEnumerateFunctions(CUfunction*, unsigned, CUmodule) { return CUDA_SUCCESS; }
EXPORT CUresult cuFuncLoad(CUfunction) { return CUDA_SUCCESS; }

EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value > 227 << 10) return CUDA_ERROR_INVALID_VALUE;
  function->shared_bytes = value;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
  *blocks = 2;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(
    CUfunction function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
    unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
    CUstream stream, void** parameters, void**) {
  NEED_CONTEXT;
  if (blocks_x == 0 || blocks_y == 0 || blocks_y > 65535 || blocks_z != 1 || threads_x == 0 ||
      threads_x > 1024 || threads_y != 1 || threads_z != 1 ||
      shared_bytes > static_cast<unsigned>(function->shared_bytes) ||
      function->known.parameter_bytes > kMostParameterBytes)
    return CUDA_ERROR_INVALID_VALUE;
  // The launch copies the parameter, because the caller may change it afterwards.
  const auto* begin = static_cast<const unsigned char*>(parameters[0]);
  auto copy = std::make_shared<std::vector<std::max_align_t>>(
      function->known.parameter_bytes / sizeof(std::max_align_t) + 1);
  std::memcpy(copy->data(), begin, function->known.parameter_bytes);
  const Launch launch{
      .kernel = function->known.kernel,
      .name = function->name.c_str(),
      .grid = {blocks_x, blocks_y, 1},
      .block = {threads_x, 1, 1},
      .shared_bytes = shared_bytes};
  Enqueue(stream, [launch, copy] {
    void* parameter = copy->data();
    dtrun::gpu_simulator::Run(launch, &parameter);
  });
  return CUDA_SUCCESS;
}
