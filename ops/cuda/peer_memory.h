#ifndef DTRUN_OPS_CUDA_PEER_MEMORY_H_
#define DTRUN_OPS_CUDA_PEER_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/communicator/communicator_base.h"
#include "ops/cuda/ipc_memory.h"
#include "ops/cuda/kernel_call.h"
#include "ops/cuda/kernel_protocol.h"

namespace dtrun::ops::cuda {

/// The GPU memory of all ranks of a host, as one of the ranks maps it. Between processes, memory
/// that is allocated here goes as file descriptors. Memory that a program has allocated itself is
/// registered and goes as cudaIpc handles. Threads of one process share both kinds directly. Not
/// thread-safe.
class PeerMemory {
 public:
  /// Collective over `host`. `host` must outlive this object; only the destructor may run after
  /// `host` is gone. Throws Error kUnavailable, on all ranks.
  PeerMemory(Communicator& host, const gpu::Device& device);

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The number of ranks on this rank's GPU, this rank included.
  int ranks_of_gpu() const { return ranks_of_gpu_; }
  char* arena(int rank) const { return arenas_[static_cast<size_t>(rank)]->data(); }
  /// An array of kMostRegions numbers: on this device, each is added to an address of rank `rank`.
  const int64_t* offsets(int rank) const {
    return reinterpret_cast<int64_t*>(offsets_->data()) + static_cast<int64_t>(rank) * kMostRegions;
  }
  CallLog& log() const { return *log_; }

  /// Collective: allocates memory of this rank that all ranks reach, as region `region`.
  struct Allocation {
    std::shared_ptr<ExportedMemory> memory;
    uint32_t region = 0;
  };
  Allocation Allocate(uint64_t bytes);
  /// Gives the allocation back: this rank does not use it any more.
  void Free(const Allocation& allocation);

  /// Collective: lets all ranks reach memory on this rank's GPU that a program has allocated
  /// itself. If there is an obstacle on any rank, no rank reaches the memory, and its data goes
  /// through staging memory as before. Ranks may pass different numbers of bytes, also 0.
  struct Registration {
    uint32_t region = 0;
    std::string obstacle;  // with the rank; "" if there is none
  };
  Registration Register(const void* data, uint64_t bytes);
  /// This rank does not use any rank's region of that number any more. The memory of the other
  /// ranks is unmapped here. A rank may free its own memory when all ranks have called this.
  void Unregister(const Registration& registration);

  /// The region of [data, data + bytes); kUnreachable if the other ranks cannot reach it.
  uint16_t RegionOf(const void* data, uint64_t bytes) const;

 private:
  using Shared = std::vector<std::shared_ptr<ExportedMemory>>;

  Shared Share(const std::shared_ptr<ExportedMemory>& mine);
  void ForgetFreed();
  uint32_t NextRegion();
  void WriteOffsets(uint32_t region, const std::vector<int64_t>& offsets);

  // The memory of all ranks that is registered as one region.
  struct Registered {
    const char* data = nullptr;  // this rank's
    uint64_t bytes = 0;
    uint64_t id = 0;                                        // of its allocation
    std::vector<std::shared_ptr<ForeignMapping>> mappings;  // by rank; null: none is needed
  };
  void MapRegistered(Registered& mine, const std::vector<ForeignMemory>& all, uint32_t region);

  Communicator& host_;
  const gpu::Device& device_;
  int rank_, size_, ranks_of_gpu_ = 0;
  std::vector<bool> same_process_;
  std::vector<int> devices_;  // by rank: the number of its GPU in its own process
  bool same_address_ = true;  // all ranks are threads of this process, on this GPU
  std::unique_ptr<DescriptorExchange> exchange_;
  Shared arenas_;
  std::unique_ptr<CallLog> log_;
  std::shared_ptr<ExportedMemory> offsets_;  // freeing an ExportedMemory waits for no kernel
  uint32_t next_region_ = kFirstAllocated;
  std::vector<Shared> regions_;  // by number, then by rank; null when the rank has freed it
  std::map<uint32_t, Registered> registered_;  // by region
};

}  // namespace dtrun::ops::cuda

#endif
