#ifndef DTRUN_OPS_SHM_SHM_GROUP_H_
#define DTRUN_OPS_SHM_SHM_GROUP_H_

#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "ops/bootstrap/bootstrap.h"
#include "ops/bootstrap/segment.h"
#include "ops/collective/collective.h"
#include "ops/engine/progress_engine.h"
#include "ops/shm/shm_layout.h"

namespace dtrun::ops::shm {

/// Memory that every rank of the group maps: one block per rank. Blocks may have different sizes.
struct Region {
  uint32_t id = 0;
  std::vector<std::shared_ptr<Segment>> blocks;  // by rank; null if a rank requested no memory
  std::atomic<uint32_t>* released = nullptr;     // number of ranks that no longer use it; shared

  char* At(int rank, uint64_t offset) const {
    return blocks[static_cast<size_t>(rank)]->data() + offset;
  }
};

/// The state that the operations of one shm communicator share on this rank: the mapped segments,
/// the doorbells of the peers, and the numbers of operations. It lives as long as the communicator,
/// its memory or any of its operations. The communicator's one thread numbers the operations. The
/// threads that drive the engine may use everything else.
class ShmGroup {
 public:
  /// Collective.
  ShmGroup(
      std::unique_ptr<SegmentExchange> exchange, Engine& engine,
      std::shared_ptr<const Members> members, bool compares_calls);

  const std::shared_ptr<const Members>& members() const { return members_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const Layout& layout() const { return layout_; }
  SegmentExchange& exchange() { return *exchange_; }
  /// True if there are more ranks than cores. Then a waiting rank should yield its core.
  bool crowded() const { return crowded_; }

  /// True if ranks post their calls and compare them.
  bool compares_calls() const { return compares_calls_; }

  uint64_t NextSequence() { return ++sequence_; }
  /// The number of the next message to, or from, rank `peer`.
  uint64_t NextSend(int peer) { return ++sends_[static_cast<size_t>(peer)]; }
  uint64_t NextReceive(int peer) { return ++receives_[static_cast<size_t>(peer)]; }

  /// True if a peer has started the collective that this rank would start next.
  bool IsAwaited() const;
  /// True if the slot of `sequence` is free: the operation that used it before has ended on every
  /// rank.
  bool SlotFree(uint64_t sequence);
  /// Says that this rank no longer needs operation `sequence`.
  void Retire(uint64_t sequence);
  /// True if every operation before `sequence` has ended on this rank.
  bool IsOldest(uint64_t sequence) const { return oldest_ == sequence; }

  /// The rounds of staging that this rank has completed in this group.
  uint64_t rounds = 0;

  /// Leave says that this rank starts nothing more. Left returns the ranks that have said so.
  void Leave();
  std::vector<int> Left() const;

  void RingPeers();
  void Ring(int peer);

  /// Collective: adds a region with a block of `bytes` from this rank.
  std::shared_ptr<const Region> AddRegion(uint64_t bytes);
  /// Says that this rank no longer uses the region. The region stays mapped until all ranks have
  /// said so, because the other ranks may still refer to it.
  void RemoveRegion(const std::shared_ptr<const Region>& region);
  /// The place of the bytes for the peers: in this rank's block of a region, or in private memory.
  Place Locate(const void* data, uint64_t bytes);
  std::shared_ptr<const Region> FindRegion(uint32_t id);

 private:
  void DropReleasedRegions();

  std::shared_ptr<const Members> members_;
  std::unique_ptr<SegmentExchange> exchange_;
  int rank_, size_;
  std::vector<std::shared_ptr<Segment>> doorbells_;
  std::shared_ptr<Segment> control_;
  Layout layout_;
  bool crowded_, compares_calls_;
  uint64_t sequence_ = 0;
  std::vector<uint64_t> sends_, receives_;  // by peer

  // Used under the engine's lock, by the threads that advance operations.
  uint64_t oldest_ = 1;
  std::set<uint64_t> retired_early_;
  uint64_t oldest_anywhere_ = 1;

  std::mutex regions_mutex_;
  std::vector<std::shared_ptr<const Region>> regions_;
  uint32_t last_region_ = 0;
};

}  // namespace dtrun::ops::shm

#endif
