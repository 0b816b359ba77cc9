#ifndef DTRUN_OPS_CUDA_IPC_MEMORY_H_
#define DTRUN_OPS_CUDA_IPC_MEMORY_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "ops/bootstrap/segment.h"

namespace dtrun::ops::cuda {

/// Memory of a GPU that other processes, and other GPUs, can map; unmapped with the object. It goes
/// when all have unmapped it.
class ExportedMemory {
 public:
  /// A new one, zeroed. Throws Error kUnavailable, with the bytes, when there is no room or the GPU
  /// cannot export any.
  static std::shared_ptr<ExportedMemory> Create(const gpu::Device& device, uint64_t bytes);
  /// One of another process, mapped for `device`. Throws Error kSystem.
  static std::shared_ptr<ExportedMemory> Import(
      const gpu::Device& device, const FileDescriptor& handle, uint64_t bytes);
  ~ExportedMemory();
  ExportedMemory(const ExportedMemory&) = delete;
  ExportedMemory& operator=(const ExportedMemory&) = delete;

  char* data() const { return reinterpret_cast<char*>(address_); }
  /// At least as many as were asked for.
  uint64_t bytes() const { return bytes_; }
  /// What Import takes, for other processes.
  FileDescriptor Export() const;

 private:
  explicit ExportedMemory(const gpu::Device& device) : device_(device) {}
  void Map(const std::vector<CUmemAccessDesc>& readers);

  const gpu::Device& device_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  uint64_t bytes_ = 0;
  bool counted_ = false, mapped_ = false;
};

/// Why a GPU cannot have any; "" when it can.
const char* WhyNotExported(const gpu::Device& device);

/// The allocation that some memory of a GPU lies in, which the program has made by itself
/// (cudaMalloc), as other ranks need to know it. Plain data.
struct ForeignMemory {
  uint64_t base = 0, bytes = 0;
  uint64_t id = 0;  ///< no other allocation of the process ever has it
  CUipcMemHandle handle = {};
};

/// The allocation of [data, data + bytes), without its handle. Throws Error kInvalidArgument unless
/// it lies on `device`, in one allocation.
ForeignMemory LookUp(const gpu::Device& device, const void* data, uint64_t bytes);

/// Adds the handle by which other processes map it; why there is none, or "".
std::string TakeHandle(const gpu::Device& device, ForeignMemory& memory);

/// Whether `data` still lies in the allocation with this id, and not in a later one at the same
/// address. Asks the driver, which waits for nothing, also while a graph is captured.
bool StillIn(uint64_t id, const void* data);

/// An allocation of another process, mapped here; unmapped with the object.
class ForeignMapping {
 public:
  /// One that is mapped already, for another communicator say, is shared: a driver may map it once
  /// only. Throws Error kSystem. Any thread.
  static std::shared_ptr<ForeignMapping> Open(
      const gpu::Device& device, const CUipcMemHandle& handle);
  ~ForeignMapping();
  ForeignMapping(const ForeignMapping&) = delete;
  ForeignMapping& operator=(const ForeignMapping&) = delete;

  /// Where the allocation begins.
  uint64_t base() const { return base_; }

 private:
  ForeignMapping(const gpu::Device& device, const CUipcMemHandle& handle, CUdeviceptr base)
      : device_(device), handle_(handle), base_(base) {}

  const gpu::Device& device_;
  const CUipcMemHandle handle_;
  const CUdeviceptr base_;
};

/// Lets kernels on `device` use memory that this process has allocated on GPU `other`. Throws Error
/// kSystem.
void EnableAccess(const gpu::Device& device, int other);

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_CUDA_IPC_MEMORY_H_
