// The hosts agree on the place of memory when it is allocated or registered. A call only looks up
// the number of its region, and the kernels tell each other that number. So no call makes the host
// wait.
//
// A program registers its own memory. The group does not exchange that memory in the background
// when a collective first sees it. The cudaIpc handle of memory is valid as long as the memory
// lives. CUDA leaves the result undefined if memory is freed while other processes have it mapped
// (the mappings keep it from being used again). A caching allocator, such as LibTorch's, frees
// memory at any time, often because it needs the room. A registration states how long the memory
// stays: a tensor's registration keeps the tensor (dtrun/torch_registration.h), and a reducer
// registers gradients that stay in place anyway.
//
// A program may free registered memory in spite of that, and allocate memory at the same address
// again. The driver gives each allocation a unique number, so the group notices the change. The new
// memory goes through staging memory.

#include "ops/cuda/peer_memory.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/driver.h"
#include "gpu/stream.h"
#include "ops/communicator/communicator_setup.h"

namespace dtrun::ops::cuda {
namespace {

constexpr std::chrono::seconds kSetupTimeout(60);

// The identity of a rank, for comparison by the other ranks.
struct Identity {
  uint64_t process = 0;  // a random number of the process
  char gpu[32] = {};
  int device = 0;  // the number of the GPU in that process
};

// Throws unless `device` reaches GPU `other` of this process. Between processes, mapping the memory
// fails instead; threads share memory without mapping it.
void CheckReach(const gpu::Device& device, int other) {
  if (device.index() == other) return;
  int reaches = 0;
  gpu::Check(
      gpu::Driver::Get().cuDeviceCanAccessPeer(
          &reaches, device.handle(), gpu::Device::Get(other).handle()),
      "cuDeviceCanAccessPeer");
  if (reaches != 0) return;
  throw Error(
      ErrorCode::kUnavailable,
      base::Text("GPU ", device.index(), " does not reach the memory of GPU ", other));
}

uint64_t ThisProcess() {
  static const uint64_t number = [] {
    uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random) ThrowErrno("getrandom");
    return random;
  }();
  return number;
}

template <typename T>
std::vector<T> Gather(Communicator& host, const T& mine) {
  std::vector<T> all;
  for (const std::string& bytes :
       AllGatherBytes(host, std::string(reinterpret_cast<const char*>(&mine), sizeof mine))) {
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    all.push_back(value);
  }
  return all;
}

}  // namespace

PeerMemory::PeerMemory(Communicator& host, const gpu::Device& device)
    : host_(host), device_(device), rank_(host.rank()), size_(host.size()) {
  Identity mine;
  mine.process = ThisProcess();
  device.bus_id().copy(mine.gpu, sizeof mine.gpu - 1);
  mine.device = device.index();
  const std::vector<Identity> all = Gather(host, mine);
  AgreeOn(host, [&] {
    for (const Identity& other : all) {
      if (other.process == mine.process) CheckReach(device, other.device);
    }
  });
  for (const Identity& other : all) {
    const bool same_gpu = std::strcmp(other.gpu, mine.gpu) == 0;
    ranks_of_gpu_ += same_gpu ? 1 : 0;
    same_process_.push_back(other.process == mine.process);
    devices_.push_back(other.device);
    same_address_ &= same_gpu && same_process_.back();
  }
  if (size_ > 1) {
    CommunicatorBootstrap bootstrap(host);
    exchange_ = ConnectDescriptorExchange(bootstrap, kSetupTimeout);
  }
  std::shared_ptr<ExportedMemory> arena;
  std::shared_ptr<Segment> log;
  AgreeOn(host, [&] {
    arena = ExportedMemory::Create(device, MemoryBytes(size_));
    log = Segment::Create(CallLog::Bytes());
    offsets_ = ExportedMemory::Create(
        device, static_cast<uint64_t>(size_) * kMostRegions * sizeof(int64_t));
  });
  arenas_ = Share(arena);
  std::vector<std::shared_ptr<Segment>> logs(static_cast<size_t>(size_));
  if (size_ > 1) {
    std::vector<FileDescriptor> handles = exchange_->AllGather(log->fd());
    AgreeOn(host, [&] {
      for (size_t r = 0; r < handles.size(); ++r) {
        if (r != static_cast<size_t>(rank_))
          logs[r] = Segment::Map(std::move(handles[r]), CallLog::Bytes());
      }
    });
  }
  logs[static_cast<size_t>(rank_)] = log;
  log_ = std::make_unique<CallLog>(std::move(logs), rank_);
  regions_.resize(kMostRegions);
}

PeerMemory::Shared PeerMemory::Share(const std::shared_ptr<ExportedMemory>& mine) {
  Shared all(static_cast<size_t>(size_));
  all[static_cast<size_t>(rank_)] = mine;
  if (size_ == 1) return all;
  // Threads of one process copy each other's pointer. `mine` stays in place until all of them have
  // done so.
  const std::vector<const std::shared_ptr<ExportedMemory>*> pointers = Gather(host_, &mine);
  const std::vector<uint64_t> bytes = Gather(host_, mine == nullptr ? 0 : mine->bytes());
  FileDescriptor own;
  AgreeOn(host_, [&] {
    const bool alone =
        std::find(same_process_.begin(), same_process_.end(), false) == same_process_.end();
    if (mine != nullptr && !alone) own = mine->Export();
  });
  const std::vector<FileDescriptor> handles = exchange_->AllGather(own.get());
  AgreeOn(host_, [&] {
    for (size_t r = 0; r < all.size(); ++r) {
      if (r == static_cast<size_t>(rank_) || bytes[r] == 0) continue;
      all[r] =
          same_process_[r] ? *pointers[r] : ExportedMemory::Import(device_, handles[r], bytes[r]);
    }
  });
  return all;
}

// Finds a free region number. A number is used again when all ranks have given it back. No kernel
// reads its entries in the table of offsets while they are rewritten.
uint32_t PeerMemory::NextRegion() {
  if (next_region_ < kMostRegions) {
    log_->MarkFreed(next_region_, true);  // free until it is taken: the next steps may fail
    return next_region_++;
  }
  std::vector<uint8_t> freed(kMostRegions);
  for (uint32_t region = kFirstAllocated; region < kMostRegions; ++region)
    freed[region] = log_->IsFreed(rank_, region) ? 1 : 0;
  host_.AllReduce(Buffer(freed.data(), freed.size(), DType::kU8), ReduceOp::kMin);
  const auto found = std::find(freed.begin() + kFirstAllocated, freed.end(), 1);
  if (found == freed.end()) {
    throw Error(
        ErrorCode::kUnavailable, base::Text(
                                     host_.members().name, " has ", kMostRegions - kFirstAllocated,
                                     " pieces of GPU memory that the ranks share, the largest "
                                     "possible number; allocate fewer, "
                                     "larger pieces"));
  }
  return static_cast<uint32_t>(found - freed.begin());
}

PeerMemory::Allocation PeerMemory::Allocate(uint64_t bytes) {
  ForgetFreed();
  Allocation allocation;
  allocation.region = NextRegion();
  AgreeOn(host_, [&] {
    if (bytes > 0) allocation.memory = ExportedMemory::Create(device_, bytes);
  });
  const Shared all = Share(allocation.memory);
  const std::vector<uint64_t> owned_at =
      Gather(host_, bytes == 0 ? 0 : reinterpret_cast<uint64_t>(allocation.memory->data()));
  std::vector<int64_t> offsets(all.size());
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] != nullptr)
      offsets[r] = static_cast<int64_t>(reinterpret_cast<uint64_t>(all[r]->data()) - owned_at[r]);
  }
  WriteOffsets(allocation.region, offsets);
  regions_[allocation.region] = all;
  log_->MarkFreed(allocation.region, false);
  // No rank uses the region before all ranks can.
  AgreeOn(host_, [] {});
  return allocation;
}

void PeerMemory::WriteOffsets(uint32_t region, const std::vector<int64_t>& offsets) {
  const gpu::DeviceScope scope(device_);
  const gpu::Stream stream(device_);
  for (size_t r = 0; r < offsets.size(); ++r) {
    gpu::CopyToDevice(
        gpu::AddressOf(offsets_->data()) + (r * kMostRegions + region) * sizeof(int64_t),
        &offsets[r], sizeof(int64_t), stream.get());
  }
  stream.Synchronize();
}

void PeerMemory::Free(const Allocation& allocation) {
  regions_[allocation.region][static_cast<size_t>(rank_)] = nullptr;
  log_->MarkFreed(allocation.region, true);
}

PeerMemory::Registration PeerMemory::Register(const void* data, uint64_t bytes) {
  ForgetFreed();
  ForeignMemory memory;
  // An invalid argument on one rank becomes an error on all ranks.
  const std::string refusal = FirstObjection(host_, [&]() -> std::string {
    if (bytes > 0) memory = LookUp(device_, data, bytes);
    return "";
  });
  if (!refusal.empty()) throw Error(ErrorCode::kInvalidArgument, refusal);
  Registration registration;
  registration.region = NextRegion();
  Registered mine;
  if (bytes > 0) mine = {static_cast<const char*>(data), bytes, memory.id, {}};
  const bool alone =
      std::find(same_process_.begin(), same_process_.end(), false) == same_process_.end();
  registration.obstacle =
      FirstObjection(host_, [&] { return bytes == 0 || alone ? "" : TakeHandle(device_, memory); });
  const std::vector<ForeignMemory> all = Gather(host_, memory);
  regions_[registration.region] = Shared(all.size());
  log_->MarkFreed(registration.region, false);
  if (registration.obstacle.empty()) {
    registration.obstacle = FirstObjection(host_, [&]() -> std::string {
      MapRegistered(mine, all, registration.region);
      return "";
    });
  }
  if (registration.obstacle.empty()) registered_[registration.region] = std::move(mine);
  return registration;
}

void PeerMemory::MapRegistered(
    Registered& mine, const std::vector<ForeignMemory>& all, uint32_t region) {
  std::vector<int64_t> offsets(all.size());
  mine.mappings.resize(all.size());
  for (size_t r = 0; r < all.size(); ++r) {
    if (static_cast<int>(r) == rank_ || all[r].bytes == 0) continue;
    if (same_process_[r]) {
      EnableAccess(device_, devices_[r]);
      continue;
    }
    mine.mappings[r] = ForeignMapping::Open(device_, all[r].handle);
    offsets[r] = static_cast<int64_t>(mine.mappings[r]->base() - all[r].base);
  }
  WriteOffsets(region, offsets);
}

void PeerMemory::Unregister(const Registration& registration) {
  registered_.erase(registration.region);
  log_->MarkFreed(registration.region, true);
}

void PeerMemory::ForgetFreed() {
  for (uint32_t region = kFirstAllocated; region < next_region_; ++region) {
    for (int r = 0; r < size_; ++r) {
      if (r != rank_ && log_->IsFreed(r, region))
        regions_[region][static_cast<size_t>(r)] = nullptr;
    }
  }
}

uint16_t PeerMemory::RegionOf(const void* data, uint64_t bytes) const {
  if (same_address_) return kSameAddress;
  const auto* begin = static_cast<const char*>(data);
  for (uint32_t region = kFirstAllocated; region < next_region_; ++region) {
    const Shared& all = regions_[region];
    const ExportedMemory* own = all[static_cast<size_t>(rank_)].get();
    if (own != nullptr && begin >= own->data() && begin + bytes <= own->data() + own->bytes())
      return static_cast<uint16_t>(region);
  }
  for (const auto& [region, mine] : registered_) {
    if (begin >= mine.data && begin + bytes <= mine.data + mine.bytes && StillIn(mine.id, begin))
      return static_cast<uint16_t>(region);
  }
  return kUnreachable;
}

}  // namespace dtrun::ops::cuda
