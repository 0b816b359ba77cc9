#include "ops/cuda/ipc_memory.h"

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/driver.h"
#include "gpu/memory.h"

namespace dtrun::ops::cuda {
namespace {

using gpu::Check;
using gpu::Driver;

CUmemAllocationProp Properties(const gpu::Device& device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.index();
  return properties;
}

uint64_t RoundUp(const gpu::Device& device, uint64_t bytes) {
  const CUmemAllocationProp properties = Properties(device);
  size_t granularity = 0;
  Check(
      Driver::Get().cuMemGetAllocationGranularity(
          &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "cuMemGetAllocationGranularity");
  return (bytes + granularity - 1) / granularity * granularity;
}

CUmemAccessDesc Reader(int index) {
  CUmemAccessDesc reader = {};
  reader.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  reader.location.id = index;
  reader.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return reader;
}

// The device itself, and the devices of this process that reach it.
std::vector<CUmemAccessDesc> ReadersOf(const gpu::Device& device) {
  std::vector<CUmemAccessDesc> readers = {Reader(device.index())};
  for (int index = 0; index < gpu::DeviceCount(); ++index) {
    if (index == device.index()) continue;
    CUdevice other = 0;
    int reaches = 0;
    Check(Driver::Get().cuDeviceGet(&other, index), "cuDeviceGet");
    Check(
        Driver::Get().cuDeviceCanAccessPeer(&reaches, other, device.handle()),
        "cuDeviceCanAccessPeer");
    if (reaches != 0) readers.push_back(Reader(index));
  }
  return readers;
}

}  // namespace

const char* WhyNotExported(const gpu::Device& device) {
  if (device.Attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0)
    return "the GPU has no virtual memory management";
  if (device.Attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0)
    return "the GPU's memory cannot be exported as file descriptors";
  return "";
}

std::shared_ptr<ExportedMemory> ExportedMemory::Create(const gpu::Device& device, uint64_t bytes) {
  const gpu::DeviceScope scope(device);
  const std::shared_ptr<ExportedMemory> memory(new ExportedMemory(device));
  memory->bytes_ = RoundUp(device, bytes);
  gpu::CountMemory(device, memory->bytes_);
  memory->counted_ = true;
  const CUmemAllocationProp properties = Properties(device);
  const CUresult result =
      Driver::Get().cuMemCreate(&memory->handle_, memory->bytes_, &properties, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) gpu::ThrowOutOfMemory(device, memory->bytes_);
  Check(result, "cuMemCreate");
  memory->Map(ReadersOf(device));
  // The memset runs on the default stream. Other streams may not wait for it, so wait here.
  Check(
      Driver::Get().cuMemsetD8Async(memory->address_, 0, memory->bytes_, nullptr),
      "cuMemsetD8Async");
  Check(Driver::Get().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  return memory;
}

std::shared_ptr<ExportedMemory> ExportedMemory::Import(
    const gpu::Device& device, const FileDescriptor& handle, uint64_t bytes) {
  const gpu::DeviceScope scope(device);
  const std::shared_ptr<ExportedMemory> memory(new ExportedMemory(device));
  memory->bytes_ = RoundUp(device, bytes);
  Check(
      Driver::Get().cuMemImportFromShareableHandle(
          &memory->handle_, reinterpret_cast<void*>(static_cast<intptr_t>(handle.get())),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  memory->Map({Reader(device.index())});
  return memory;
}

void ExportedMemory::Map(const std::vector<CUmemAccessDesc>& readers) {
  const Driver& driver = Driver::Get();
  Check(driver.cuMemAddressReserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve");
  Check(driver.cuMemMap(address_, bytes_, 0, handle_, 0), "cuMemMap");
  mapped_ = true;
  Check(driver.cuMemSetAccess(address_, bytes_, readers.data(), readers.size()), "cuMemSetAccess");
}

ExportedMemory::~ExportedMemory() {
  const gpu::DeviceScope scope(device_);
  const Driver& driver = Driver::Get();
  if (mapped_) driver.cuMemUnmap(address_, bytes_);
  if (address_ != 0) driver.cuMemAddressFree(address_, bytes_);
  if (handle_ != 0) driver.cuMemRelease(handle_);
  if (counted_) gpu::UncountMemory(device_, bytes_);
}

FileDescriptor ExportedMemory::Export() const {
  int fd = -1;
  const gpu::DeviceScope scope(device_);
  Check(
      Driver::Get().cuMemExportToShareableHandle(
          &fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle");
  return FileDescriptor(fd);
}

namespace {

using base::Text;
using gpu::Check;
using gpu::Driver;

// The driver puts smaller allocations into one block with others, and a handle opens the whole
// block.
constexpr uint64_t kLeastAllocation = 2 << 20;

template <typename T>
bool Ask(CUpointer_attribute attribute, uint64_t address, T& value) {
  return Driver::Get().cuPointerGetAttribute(&value, attribute, address) == CUDA_SUCCESS;
}

[[noreturn]] void Refuse(const void* data, uint64_t bytes, const std::string& found, int expected) {
  throw Error(
      ErrorCode::kInvalidArgument, Text(
                                       "register: ", bytes, " bytes at ", data, " ", found,
                                       "; expected memory of GPU ", expected));
}

}  // namespace

ForeignMemory LookUp(const gpu::Device& device, const void* data, uint64_t bytes) {
  const gpu::DeviceScope scope(device);
  const auto address = reinterpret_cast<uint64_t>(data);
  unsigned type = 0;
  int ordinal = -1;
  if (!Ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address, type) || type != CU_MEMORYTYPE_DEVICE)
    Refuse(data, bytes, "do not lie on a GPU", device.index());
  if (!Ask(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address, ordinal) || ordinal != device.index())
    Refuse(data, bytes, Text("lie on GPU ", ordinal), device.index());
  CUdeviceptr base = 0;
  size_t size = 0;
  Check(Driver::Get().cuMemGetAddressRange(&base, &size, address), "cuMemGetAddressRange");
  const uint64_t left = base + size - address;
  if (bytes > left)
    Refuse(
        data, bytes, Text("reach ", bytes - left, " bytes beyond what was allocated"),
        device.index());
  ForeignMemory found;
  found.base = base;
  found.bytes = size;
  unsigned long long id = 0;
  Check(
      Driver::Get().cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address),
      "cuPointerGetAttribute CU_POINTER_ATTRIBUTE_BUFFER_ID");
  found.id = id;
  return found;
}

std::string TakeHandle(const gpu::Device& device, ForeignMemory& memory) {
  const gpu::DeviceScope scope(device);
  // A truth value: some drivers write four bytes, others write one.
  int capable = 0;
  Ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory.base, capable);
  if ((capable & 0xFF) == 0)
    return "its memory was allocated in a way that has no cudaIpc handles (a pool, or cuMemMap)";
  if (memory.bytes < kLeastAllocation) {
    return Text(
        "its memory lies in an allocation of ", memory.bytes, " bytes; expected ", kLeastAllocation,
        " or more");
  }
  const CUresult result = Driver::Get().cuIpcGetMemHandle(&memory.handle, memory.base);
  return result == CUDA_SUCCESS ? "" : Text("cuIpcGetMemHandle failed: ", gpu::Describe(result));
}

bool StillIn(uint64_t id, const void* data) {
  unsigned long long now = 0;
  return Ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, reinterpret_cast<uint64_t>(data), now) && now == id;
}

namespace {

// The device and the handle.
using Key = std::pair<int, std::array<char, sizeof(CUipcMemHandle)>>;

Key KeyOf(const gpu::Device& device, const CUipcMemHandle& handle) {
  Key key{device.index(), {}};
  std::memcpy(key.second.data(), &handle, sizeof handle);
  return key;
}

struct OpenMappings {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<ForeignMapping>> by_key;

  static OpenMappings& OfProcess() {
    static auto* const mappings = new OpenMappings;
    return *mappings;
  }
};

}  // namespace

std::shared_ptr<ForeignMapping> ForeignMapping::Open(
    const gpu::Device& device, const CUipcMemHandle& handle) {
  OpenMappings& open = OpenMappings::OfProcess();
  const Key key = KeyOf(device, handle);
  std::lock_guard lock(open.mutex);
  const auto known = open.by_key.find(key);
  std::shared_ptr<ForeignMapping> mapping =
      known == open.by_key.end() ? nullptr : known->second.lock();
  if (mapping != nullptr) return mapping;
  const gpu::DeviceScope scope(device);
  CUdeviceptr base = 0;
  Check(
      Driver::Get().cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
      "cuIpcOpenMemHandle");
  mapping.reset(new ForeignMapping(device, handle, base));
  open.by_key[key] = mapping;
  return mapping;
}

// Another thread may have mapped the allocation again after the last owner let go of this object.
// The driver counts mappings, so each object closes its own.
ForeignMapping::~ForeignMapping() {
  OpenMappings& open = OpenMappings::OfProcess();
  std::lock_guard lock(open.mutex);
  const auto known = open.by_key.find(KeyOf(device_, handle_));
  if (known != open.by_key.end() && known->second.expired()) open.by_key.erase(known);
  const gpu::DeviceScope scope(device_);
  Driver::Get().cuIpcCloseMemHandle(base_);
}

void EnableAccess(const gpu::Device& device, int other) {
  if (device.index() == other) return;
  const gpu::DeviceScope scope(device);
  const CUresult result = Driver::Get().cuCtxEnablePeerAccess(gpu::Device::Get(other).context(), 0);
  if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) Check(result, "cuCtxEnablePeerAccess");
}

}  // namespace dtrun::ops::cuda
