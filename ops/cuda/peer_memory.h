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

/// The memory of the ranks of a host, on their GPUs, as one of them maps it. Between processes,
/// what is allocated here goes as file descriptors, and what a program has allocated by itself, and
/// registers, as cudaIpc handles; threads of one process share both as they are. Not thread-safe.
class PeerMemory {
 public:
  /// Collective over `host`, which outlives it but for its destructor. Throws Error kUnavailable,
  /// on all ranks.
  PeerMemory(Communicator& host, const gpu::Device& device);

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// How many ranks share this rank's GPU, itself included.
  int ranks_of_gpu() const { return ranks_of_gpu_; }
  char* arena(int rank) const { return arenas_[static_cast<size_t>(rank)]->data(); }
  /// [kMostRegions]: what is added to an address of that rank's, on this device.
  const int64_t* offsets(int rank) const {
    return reinterpret_cast<int64_t*>(offsets_->data()) + static_cast<int64_t>(rank) * kMostRegions;
  }
  CallLog& log() const { return *log_; }

  /// Collective: memory of this rank that all reach, as region `region()`.
  struct Allocation {
    std::shared_ptr<ExportedMemory> memory;
    uint32_t region = 0;
  };
  Allocation Allocate(uint64_t bytes);
  /// This rank needs it no more, and uses it no more.
  void Free(const Allocation& allocation);

  /// Collective: memory that a program has allocated by itself, on this rank's GPU. All reach it
  /// from now on, unless there is an obstacle on any rank: then none does, and it goes through
  /// staging memory as before. Ranks may bring different numbers of bytes, also none.
  struct Registration {
    uint32_t region = 0;
    std::string obstacle;  // with the rank; "" when there is none
  };
  Registration Register(const void* data, uint64_t bytes);
  /// This rank uses no region of that number any more, of any rank. The memory of the others is
  /// unmapped here; so a rank's own may be freed when all ranks have done this.
  void Unregister(const Registration& registration);

  /// The region that [data, data + bytes) lies in; kUnreachable when others cannot reach it.
  uint16_t RegionOf(const void* data, uint64_t bytes) const;

 private:
  using Shared = std::vector<std::shared_ptr<ExportedMemory>>;

  Shared Share(const std::shared_ptr<ExportedMemory>& mine);
  void ForgetFreed();
  uint32_t NextRegion();
  void WriteOffsets(uint32_t region, const std::vector<int64_t>& offsets);

  // What is registered as a region.
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
  std::vector<int> devices_;  // of each rank, by its number there
  bool same_address_ = true;  // all ranks: threads of this process, on this GPU
  std::unique_ptr<DescriptorExchange> exchange_;
  Shared arenas_;
  std::unique_ptr<CallLog> log_;
  std::shared_ptr<ExportedMemory> offsets_;  // whose end waits for no kernel
  uint32_t next_region_ = kFirstAllocated;
  std::vector<Shared> regions_;  // by number; those of this rank alone as long as it needs them
  std::map<uint32_t, Registered> registered_;  // by region
};

}  // namespace dtrun::ops::cuda

#endif
