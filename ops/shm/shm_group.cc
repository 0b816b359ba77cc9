#include "ops/shm/shm_group.h"

#include <algorithm>

#include "dtrun/error.h"
#include "ops/doorbell.h"

namespace dtrun::ops::shm {
namespace {

std::shared_ptr<Segment> ExchangeControl(SegmentExchange& exchange, int rank, int size) {
  return exchange.AllGather(rank == 0 ? Segment::Create(Layout::Bytes(size)) : nullptr)[0];
}

}  // namespace

ShmGroup::ShmGroup(
    std::unique_ptr<SegmentExchange> exchange, Engine& engine,
    std::shared_ptr<const Members> members)
    : members_(std::move(members)),
      exchange_(std::move(exchange)),
      rank_(exchange_->rank()),
      size_(exchange_->size()),
      doorbells_(exchange_->AllGather(engine.doorbell_segment())),
      control_(ExchangeControl(*exchange_, rank_, size_)),
      layout_(control_->data(), size_) {
  layout_.retired(rank_).value.store(1, std::memory_order_release);
}

bool ShmGroup::SlotFree(uint64_t sequence) {
  if (sequence < oldest_anywhere_ + kSlots) return true;
  uint64_t oldest = UINT64_MAX;
  for (int r = 0; r < size_; ++r) {
    oldest = std::min(oldest, layout_.retired(r).value.load(std::memory_order_acquire));
  }
  // A peer that has not got as far as its constructor's end still says 0.
  oldest_anywhere_ = std::max<uint64_t>(oldest, 1);
  return sequence < oldest_anywhere_ + kSlots;
}

void ShmGroup::Retire(uint64_t sequence) {
  retired_early_.insert(sequence);
  while (!retired_early_.empty() && *retired_early_.begin() == oldest_) {
    retired_early_.erase(retired_early_.begin());
    ++oldest_;
  }
  layout_.retired(rank_).value.store(oldest_, std::memory_order_release);
}

void ShmGroup::RingPeers() {
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) reinterpret_cast<Doorbell*>(doorbells_[static_cast<size_t>(r)]->data())->Ring();
  }
}

std::shared_ptr<const Region> ShmGroup::AddRegion(uint64_t bytes) {
  auto region = std::make_shared<Region>();
  region->id = ++last_region_;
  region->blocks = exchange_->AllGather(bytes > 0 ? Segment::Create(bytes) : nullptr);
  std::lock_guard lock(regions_mutex_);
  regions_.push_back(region);
  return region;
}

void ShmGroup::RemoveRegion(const std::shared_ptr<const Region>& region) {
  std::lock_guard lock(regions_mutex_);
  std::erase(regions_, region);
}

Location ShmGroup::Locate(const void* data, uint64_t bytes) {
  std::lock_guard lock(regions_mutex_);
  for (const auto& region : regions_) {
    const Segment* block = region->blocks[static_cast<size_t>(rank_)].get();
    if (block == nullptr) continue;
    const char* begin = static_cast<const char*>(data);
    if (begin >= block->data() && begin + bytes <= block->data() + block->bytes()) {
      return {region, static_cast<uint64_t>(begin - block->data())};
    }
  }
  return {};
}

}  // namespace dtrun::ops::shm
