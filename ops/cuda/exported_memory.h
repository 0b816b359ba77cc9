#ifndef DTRUN_OPS_CUDA_EXPORTED_MEMORY_H_
#define DTRUN_OPS_CUDA_EXPORTED_MEMORY_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/device.h"
#include "ops/segment.h"

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

}  // namespace dtrun::ops::cuda

#endif
