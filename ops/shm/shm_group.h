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

/// Memory that every rank of the group maps: one block per rank, of possibly different sizes.
struct Region {
  uint32_t id = 0;
  std::vector<std::shared_ptr<Segment>> blocks;  // by rank; null where a rank asked for nothing
  std::atomic<uint32_t>* released = nullptr;     // ranks that use it no more; shared

  char* At(int rank, uint64_t offset) const {
    return blocks[static_cast<size_t>(rank)]->data() + offset;
  }
};

/// What the operations of one shm communicator share on this rank: the mapped segments, the
/// doorbells of the peers, and the numbering of operations. It lives as long as the communicator,
/// its memory or one of its operations. Operations are numbered by the communicator's one thread;
/// everything else is safe to use from the threads that drive the engine.
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
  /// There are more ranks than cores: whoever waits should give its core away.
  bool crowded() const { return crowded_; }

  /// Ranks tell each other what they called, and compare.
  bool compares_calls() const { return compares_calls_; }

  uint64_t NextSequence() { return ++sequence_; }
  /// The next message to, or from, rank `peer`.
  uint64_t NextSend(int peer) { return ++sends_[static_cast<size_t>(peer)]; }
  uint64_t NextReceive(int peer) { return ++receives_[static_cast<size_t>(peer)]; }

  /// A peer has started the collective that this rank would start next.
  bool IsAwaited() const;
  /// The slot of `sequence` is free: the operation that used it before has ended on every rank.
  bool SlotFree(uint64_t sequence);
  /// This rank needs nothing of operation `sequence` any more.
  void Retire(uint64_t sequence);
  /// Every operation before `sequence` has ended on this rank.
  bool IsOldest(uint64_t sequence) const { return oldest_ == sequence; }

  /// Rounds of staging that this rank has been through since the group exists.
  uint64_t rounds = 0;

  /// This rank starts nothing more; the ranks of which that is known.
  void Leave();
  std::vector<int> Left() const;

  void RingPeers();
  void Ring(int peer);

  /// Collective: adds a region to which this rank brings `bytes`.
  std::shared_ptr<const Region> AddRegion(uint64_t bytes);
  /// This rank uses it no more. It stays mapped until that is true of all ranks, which may still
  /// name it.
  void RemoveRegion(const std::shared_ptr<const Region>& region);
  /// Where the bytes lie for the peers, in this rank's block of a region or in private memory.
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

  // Under the engine's lock: only its advancing threads come here.
  uint64_t oldest_ = 1;
  std::set<uint64_t> retired_early_;
  uint64_t oldest_anywhere_ = 1;

  std::mutex regions_mutex_;
  std::vector<std::shared_ptr<const Region>> regions_;
  uint32_t last_region_ = 0;
};

}  // namespace dtrun::ops::shm

#endif
