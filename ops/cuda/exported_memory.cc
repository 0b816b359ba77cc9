#include "ops/cuda/exported_memory.h"

#include <vector>

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

// The device itself, and those of this process that reach it.
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
  // On the default stream, which other streams may not wait for.
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

}  // namespace dtrun::ops::cuda
