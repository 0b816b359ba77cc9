#include "ops/shm/shm_group.h"

#include <algorithm>

#include "dtrun/error.h"
#include "ops/bootstrap/segment.h"

namespace dtrun::ops::shm {
namespace {

// After rank 0's block, a region has the number of ranks that have released it.
constexpr uint64_t kPage = 4096;

uint64_t Pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::shared_ptr<Segment> ExchangeControl(SegmentExchange& exchange, int rank, int size) {
  return exchange.AllGather(rank == 0 ? Segment::Create(Layout::Bytes(size)) : nullptr)[0];
}

}  // namespace

ShmGroup::ShmGroup(
    std::unique_ptr<SegmentExchange> exchange, Engine& engine,
    std::shared_ptr<const Members> members, bool compares_calls)
    : members_(std::move(members)),
      exchange_(std::move(exchange)),
      rank_(exchange_->rank()),
      size_(exchange_->size()),
      doorbells_(exchange_->AllGather(engine.doorbell_segment())),
      control_(ExchangeControl(*exchange_, rank_, size_)),
      layout_(control_->data(), size_),
      crowded_(!engine.options().may_spin),
      compares_calls_(compares_calls),
      sends_(static_cast<size_t>(size_)),
      receives_(static_cast<size_t>(size_)) {
  layout_.retired(rank_).value.store(1, std::memory_order_release);
}

bool ShmGroup::IsAwaited() const {
  for (int r = 0; r < size_; ++r) {
    const Arrival& arrival = layout_.arrival(sequence_ + 1, r);
    if (arrival.sequence.load(std::memory_order_acquire) == sequence_ + 1) return true;
  }
  return false;
}

bool ShmGroup::SlotFree(uint64_t sequence) {
  if (sequence < oldest_anywhere_ + kSlots) return true;
  uint64_t oldest = UINT64_MAX;
  for (int r = 0; r < size_; ++r) {
    oldest = std::min(oldest, layout_.retired(r).value.load(std::memory_order_acquire));
  }
  // A peer that has not finished its constructor still says 0.
  oldest_anywhere_ = std::max<uint64_t>(oldest, 1);
  return sequence < oldest_anywhere_ + kSlots;
}

void ShmGroup::Retire(uint64_t sequence) {
  if (sequence == oldest_ && retired_early_.empty()) {
    ++oldest_;
  } else {
    retired_early_.insert(sequence);
    while (!retired_early_.empty() && *retired_early_.begin() == oldest_) {
      retired_early_.erase(retired_early_.begin());
      ++oldest_;
    }
  }
  layout_.retired(rank_).value.store(oldest_, std::memory_order_release);
}

void ShmGroup::Leave() {
  layout_.left(rank_).value.store(1, std::memory_order_release);
  RingPeers();
}

std::vector<int> ShmGroup::Left() const {
  std::vector<int> left;
  for (int r = 0; r < size_; ++r) {
    if (layout_.left(r).value.load(std::memory_order_acquire) != 0) left.push_back(r);
  }
  return left;
}

void ShmGroup::RingPeers() {
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) Ring(r);
  }
}

void ShmGroup::Ring(int peer) {
  reinterpret_cast<Doorbell*>(doorbells_[static_cast<size_t>(peer)]->data())->Ring();
}

std::shared_ptr<const Region> ShmGroup::AddRegion(uint64_t bytes) {
  auto region = std::make_shared<Region>();
  region->id = ++last_region_;
  const uint64_t with_count = rank_ == 0 ? Pages(bytes) + kPage : bytes;
  region->blocks = exchange_->AllGather(with_count > 0 ? Segment::Create(with_count) : nullptr);
  const Segment& first = *region->blocks[0];
  region->released = reinterpret_cast<std::atomic<uint32_t>*>(first.data() + first.bytes() - kPage);
  std::lock_guard lock(regions_mutex_);
  DropReleasedRegions();
  regions_.push_back(region);
  return region;
}

void ShmGroup::RemoveRegion(const std::shared_ptr<const Region>& region) {
  region->released->fetch_add(1, std::memory_order_acq_rel);
  std::lock_guard lock(regions_mutex_);
  DropReleasedRegions();
}

void ShmGroup::DropReleasedRegions() {
  std::erase_if(regions_, [this](const auto& region) {
    return region->released->load(std::memory_order_acquire) == static_cast<uint32_t>(size_);
  });
}

Place ShmGroup::Locate(const void* data, uint64_t bytes) {
  std::lock_guard lock(regions_mutex_);
  for (const auto& region : regions_) {
    const Segment* block = region->blocks[static_cast<size_t>(rank_)].get();
    if (block == nullptr) continue;
    const char* begin = static_cast<const char*>(data);
    if (begin >= block->data() && begin + bytes <= block->data() + block->bytes()) {
      return {region->id, static_cast<uint64_t>(begin - block->data())};
    }
  }
  return {};
}

std::shared_ptr<const Region> ShmGroup::FindRegion(uint32_t id) {
  std::lock_guard lock(regions_mutex_);
  for (const auto& region : regions_) {
    if (region->id == id) return region;
  }
  return nullptr;
}

}  // namespace dtrun::ops::shm
