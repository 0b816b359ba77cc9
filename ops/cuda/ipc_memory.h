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

/// Memory of a GPU that other processes and other GPUs can map. The destructor unmaps it here. The
/// memory is freed when all processes have unmapped it.
class ExportedMemory {
 public:
  /// Allocates zeroed memory. Throws Error kUnavailable, with the number of bytes, if there is no
  /// room; kSystem if the driver refuses.
  static std::shared_ptr<ExportedMemory> Create(const gpu::Device& device, uint64_t bytes);
  /// Maps memory of another process for `device`. Throws Error kSystem.
  static std::shared_ptr<ExportedMemory> Import(
      const gpu::Device& device, const FileDescriptor& handle, uint64_t bytes);
  ~ExportedMemory();
  ExportedMemory(const ExportedMemory&) = delete;
  ExportedMemory& operator=(const ExportedMemory&) = delete;

  char* data() const { return reinterpret_cast<char*>(address_); }
  /// At least the number of bytes that was requested.
  uint64_t bytes() const { return bytes_; }
  /// A handle for Import in another process.
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

/// The reason why a GPU cannot have exported memory; "" if it can.
const char* WhyNotExported(const gpu::Device& device);

/// An allocation on a GPU that the program has made itself (cudaMalloc), as other ranks need to
/// know it. Plain data.
struct ForeignMemory {
  uint64_t base = 0, bytes = 0;
  uint64_t id = 0;  ///< unique among all allocations of the process, past and future
  CUipcMemHandle handle = {};
};

/// Finds the allocation of [data, data + bytes), without its handle. Throws Error kInvalidArgument
/// unless the range lies on `device`, in one allocation.
ForeignMemory LookUp(const gpu::Device& device, const void* data, uint64_t bytes);

/// Adds the handle that other processes map. Returns the reason if there is no handle, otherwise
/// "".
std::string TakeHandle(const gpu::Device& device, ForeignMemory& memory);

/// Whether `data` still lies in the allocation with this id, and not in a later allocation at the
/// same address. Asks the driver without waiting, also while a graph is captured.
bool StillIn(uint64_t id, const void* data);

/// An allocation of another process, mapped here. The destructor unmaps it.
class ForeignMapping {
 public:
  /// Maps the allocation, or shares an existing mapping, for example of another communicator: a
  /// driver may allow only one mapping. Throws Error kSystem. Thread-safe.
  static std::shared_ptr<ForeignMapping> Open(
      const gpu::Device& device, const CUipcMemHandle& handle);
  ~ForeignMapping();
  ForeignMapping(const ForeignMapping&) = delete;
  ForeignMapping& operator=(const ForeignMapping&) = delete;

  /// The address of the allocation in this process.
  uint64_t base() const { return base_; }

 private:
  ForeignMapping(const gpu::Device& device, const CUipcMemHandle& handle, CUdeviceptr base)
      : device_(device), handle_(handle), base_(base) {}

  const gpu::Device& device_;
  const CUipcMemHandle handle_;
  const CUdeviceptr base_;
};

/// Lets kernels on `device` use the memory that this process has allocated on GPU `other`. Throws
/// Error kSystem.
void EnableAccess(const gpu::Device& device, int other);

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_CUDA_IPC_MEMORY_H_
