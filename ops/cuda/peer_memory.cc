#include "ops/cuda/peer_memory.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/driver.h"
#include "gpu/stream.h"
#include "ops/communicator_bootstrap.h"
#include "ops/cuda/agree.h"

namespace dtrun::ops::cuda {
namespace {

constexpr std::chrono::seconds kSetupTimeout(60);

// Who a rank is, for the others to compare.
struct Identity {
  uint64_t process = 0;  // a number that no other process has
  char gpu[32] = {};
  int device = 0;  // its number in that process
};

// Between processes, to map memory fails where it cannot be reached; threads share it as it is.
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
  // Threads of one process take each other's pointer; it stays where it is until all have.
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

PeerMemory::Allocation PeerMemory::Allocate(uint64_t bytes) {
  ForgetFreed();
  if (next_region_ == kMostRegions) {
    throw Error(
        ErrorCode::kUnavailable,
        base::Text(
            host_.members().name, " has allocated memory on GPUs ", kMostRegions - kFirstAllocated,
            " times, which is as often as it can; allocate more at once"));
  }
  Allocation allocation;
  AgreeOn(host_, [&] {
    if (bytes > 0) allocation.memory = ExportedMemory::Create(device_, bytes);
  });
  allocation.region = next_region_++;
  const Shared all = Share(allocation.memory);
  const std::vector<uint64_t> owned_at =
      Gather(host_, bytes == 0 ? 0 : reinterpret_cast<uint64_t>(allocation.memory->data()));
  SetOffsets(allocation.region, all, owned_at);
  regions_[allocation.region] = all;
  // Nobody uses it before all can.
  AgreeOn(host_, [] {});
  return allocation;
}

void PeerMemory::SetOffsets(
    uint32_t region, const Shared& all, const std::vector<uint64_t>& owned_at) {
  const gpu::DeviceScope scope(device_);
  const gpu::Stream stream(device_);
  std::vector<int64_t> offsets(all.size());
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == nullptr) continue;
    offsets[r] = static_cast<int64_t>(reinterpret_cast<uint64_t>(all[r]->data()) - owned_at[r]);
    gpu::CopyToDevice(
        gpu::AddressOf(offsets_->data()) + (r * kMostRegions + region) * sizeof(int64_t),
        &offsets[r], sizeof(int64_t), stream.get());
  }
  stream.Synchronize();
}

void PeerMemory::Free(const Allocation& allocation) {
  regions_[allocation.region][static_cast<size_t>(rank_)] = nullptr;
  log_->MarkFreed(allocation.region);
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
  return kUnreachable;
}

}  // namespace dtrun::ops::cuda
