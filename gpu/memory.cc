#include "gpu/memory.h"

#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "dtrun/error.h"
#include "gpu/driver.h"

namespace dtrun::gpu {
namespace {

constexpr int kMostDevices = 64;

std::atomic<uint64_t> limit = 0;
std::atomic<uint64_t> taken[kMostDevices];

std::atomic<uint64_t>& TakenOf(int index) { return taken[index % kMostDevices]; }

}  // namespace

void SetMemoryLimit(uint64_t bytes) { limit = bytes; }
uint64_t MemoryLimit() { return limit; }

uint64_t MemoryTaken(int index) { return TakenOf(index); }

void ThrowOutOfMemory(const Device& device, uint64_t bytes) {
  const uint64_t allowed = limit, used = MemoryTaken(device.index());
  std::string free = std::to_string(device.Memory().free) + " bytes are free";
  if (allowed != 0)
    free += ", of which this process may take " +
            std::to_string(allowed > used ? allowed - used : 0) + " more";
  throw Error(
      ErrorCode::kUnavailable, "GPU " + std::to_string(device.index()) + " (" + device.name() +
                                   ") has no room for " + std::to_string(bytes) +
                                   " bytes: " + free);
}

void CountMemory(const Device& device, uint64_t bytes) {
  std::atomic<uint64_t>& used = TakenOf(device.index());
  const uint64_t allowed = limit;
  const uint64_t before = used.fetch_add(bytes);
  if (allowed == 0 || before + bytes <= allowed) return;
  used.fetch_sub(bytes);
  ThrowOutOfMemory(device, bytes);
}

void UncountMemory(const Device& device, uint64_t bytes) {
  TakenOf(device.index()).fetch_sub(bytes);
}

DeviceMemory::DeviceMemory(const Device& device, uint64_t bytes) : device_(&device), bytes_(bytes) {
  if (bytes == 0) return;
  CountMemory(device, bytes);
  const DeviceScope scope(device);
  const Driver& driver = Driver::Get();
  const CUresult result = driver.cuMemAlloc(&address_, bytes);
  if (result != CUDA_SUCCESS) {
    UncountMemory(device, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) ThrowOutOfMemory(device, bytes);
    Check(result, "cuMemAlloc");
  }
  // The memset runs on the default stream. Other streams may not wait for it, so wait here.
  Check(driver.cuMemsetD8Async(address_, 0, bytes, nullptr), "cuMemsetD8Async");
  Check(driver.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}

DeviceMemory::~DeviceMemory() {
  if (address_ == 0) return;
  const DeviceScope scope(*device_);
  Driver::Get().cuMemFree(address_);
  UncountMemory(*device_, bytes_);
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedMemory::PinnedMemory(const Device& device, uint64_t bytes) : device_(&device), bytes_(bytes) {
  if (bytes == 0) return;
  const DeviceScope scope(device);
  const CUresult result = Driver::Get().cuMemHostAlloc(&data_, bytes, CU_MEMHOSTALLOC_PORTABLE);
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    throw Error(
        ErrorCode::kUnavailable,
        "there is no room for " + std::to_string(bytes) + " bytes of pinned host memory");
  Check(result, "cuMemHostAlloc");
  std::memset(data_, 0, bytes);
}

PinnedMemory::~PinnedMemory() {
  if (data_ == nullptr) return;
  const DeviceScope scope(*device_);
  Driver::Get().cuMemFreeHost(data_);
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace dtrun::gpu
