#include "ops/cuda/foreign_memory.h"

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/driver.h"

namespace dtrun::ops::cuda {
namespace {

using base::Text;
using gpu::Check;
using gpu::Driver;

// Less than that the driver keeps together with others in one block, all of which a handle opens.
constexpr uint64_t kLeastBytes = 2 << 20;

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
  // A truth value, of which drivers write four bytes or one.
  int capable = 0;
  Ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory.base, capable);
  if ((capable & 0xFF) == 0)
    return "its memory was allocated in a way that has no cudaIpc handles (a pool, or cuMemMap)";
  if (memory.bytes < kLeastBytes) {
    return Text(
        "its memory lies in an allocation of ", memory.bytes, " bytes; expected ", kLeastBytes,
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

// By device and handle.
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

// Somebody may have opened it again since nobody had it: drivers count.
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
