#ifndef DTRUN_OPS_CUDA_PEER_MEMORY_H_
#define DTRUN_OPS_CUDA_PEER_MEMORY_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "ops/bootstrap/segment.h"
#include "ops/communicator/communicator_base.h"
#include "ops/cuda/kernel_call.h"

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

/// The arenas of all ranks of a host, as one of the ranks maps them, and their call log.
class PeerMemory {
 public:
  /// Collective over `host`. Throws Error kUnavailable, on all ranks.
  PeerMemory(Communicator& host, const gpu::Device& device);

  /// The number of ranks on this rank's GPU, this rank included.
  int ranks_of_gpu() const { return ranks_of_gpu_; }
  char* arena(int rank) const { return arenas_[static_cast<size_t>(rank)]->data(); }
  CallLog& log() const { return *log_; }

 private:
  int ranks_of_gpu_ = 0;
  std::vector<std::shared_ptr<ExportedMemory>> arenas_;  // by rank
  std::unique_ptr<CallLog> log_;
};

}  // namespace dtrun::ops::cuda

#endif
