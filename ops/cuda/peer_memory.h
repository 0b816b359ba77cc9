#ifndef DTRUN_OPS_CUDA_PEER_MEMORY_H_
#define DTRUN_OPS_CUDA_PEER_MEMORY_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "ops/bootstrap/segment.h"
#include "ops/collective/collective.h"
#include "ops/communicator/communicator_base.h"
#include "ops/cuda/kernel_args.h"

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

/// Why kernels of the ranks of a host cannot wait for each other: two of its processes share a GPU
/// without MPS, so that their kernels take turns. "" if they can. Collective over `host`, which may
/// have ranks of several hosts.
std::string WhyNotAtOnce(Communicator& host, const gpu::Device& device);

/// A digest of the parts of a call that all ranks must call alike.
uint64_t SignatureOf(const Collective& collective, int rank, int size);

/// The last calls of all ranks of a host, for the texts of errors, in memory that all of them map.
/// Each rank writes its own calls, and reads the calls of the others when a call has failed.
class CallLog {
 public:
  static constexpr uint64_t kKept = 128;  // calls of a rank

  /// `segments`: one of Bytes() for each rank.
  CallLog(std::vector<std::shared_ptr<Segment>> segments, int rank);
  static uint64_t Bytes();

  /// This rank's call `number`, counted from 1.
  void Write(uint32_t number, const Collective& collective);

  /// Describes how the calls with these numbers, by rank, disagree: "rank 0 called ...; rank 1
  /// called ...".
  std::string Disagreement(const uint32_t* numbers, const Members& members) const;
  bool IsMessage(int rank, uint32_t number) const;
  /// Describes the call of one rank: "all_reduce (f32, 4 elements, sum)".
  std::string Describe(int rank, uint32_t number) const;

 private:
  struct Entry;
  struct Page;
  Page& page(int rank) const;
  const Entry* Find(int rank, uint32_t number) const;

  std::vector<std::shared_ptr<Segment>> segments_;
  int rank_;
};

/// The memory that the ranks of a host share, as one of them maps it: memory of each rank's GPU,
/// and the call log.
struct PeerMemory {
  /// Collective over `host`; each rank allocates `bytes` on its GPU. Throws Error kUnavailable, on
  /// all ranks.
  PeerMemory(Communicator& host, const gpu::Device& device, uint64_t bytes);

  std::vector<std::shared_ptr<ExportedMemory>> arenas;  ///< by rank
  std::unique_ptr<CallLog> log;
};

}  // namespace dtrun::ops::cuda

#endif
