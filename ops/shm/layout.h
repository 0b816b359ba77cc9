#ifndef DTRUN_OPS_SHM_LAYOUT_H_
#define DTRUN_OPS_SHM_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace dtrun::ops::shm {

inline constexpr size_t kCacheLine = 64;
/// Operations that may be under way at once; a further one waits until the oldest has ended on
/// every rank.
inline constexpr uint64_t kSlots = 16;
/// A rank's contribution up to this size travels beside its arrival.
inline constexpr uint64_t kInlineBytes = 4096;
/// One half of a rank's staging area: with its peers' halves it stays in the second-level cache.
inline constexpr uint64_t kStageBytes = 256 << 10;

/// What a rank has called, so that its peers can compare before data moves.
struct Fingerprint {
  uint64_t count;
  uint64_t memory_offset;  ///< of the buffer in this rank's block of `memory`
  uint32_t memory;         ///< number of the allocation it lies in; 0: private memory
  int32_t root;
  uint8_t kind;
  uint8_t dtype;
  uint8_t op;
};

/// One cache line that says: this rank has started operation `sequence`, and which.
struct alignas(kCacheLine) Arrival {
  std::atomic<uint64_t> sequence;
  Fingerprint fingerprint;
};

/// A counter that starts anew with every operation that uses its slot: the upper half names the
/// operation, the lower half counts, so nobody has to reset it and a rank that is late cannot
/// disturb the next operation.
struct alignas(kCacheLine) TaggedCounter {
  std::atomic<uint64_t> word;

  static uint64_t Tag(uint64_t sequence) { return sequence << 32; }
  static uint64_t Count(uint64_t word) { return word & 0xffffffffu; }

  /// The count of operation `sequence`, which is `most` at most: takes the next number below
  /// `most`, or returns `most`.
  uint64_t Take(uint64_t sequence, uint64_t most);
  /// Adds one to the count of operation `sequence` and returns the sum. The caller knows that the
  /// operation is under way.
  uint64_t Increment(uint64_t sequence);
  /// False too when the slot has gone to a later operation, which cannot start before `sequence`
  /// has reached `target`.
  bool Reached(uint64_t sequence, uint64_t target) const;
};

struct alignas(kCacheLine) Counter {
  std::atomic<uint64_t> value;
};

/// Where things lie in the segment that all ranks of a communicator map. Pure arithmetic over
/// `size` ranks; zeroed memory is a valid start.
class Layout {
 public:
  Layout(char* base, int size) : base_(base), size_(static_cast<uint64_t>(size)) {}

  static uint64_t Bytes(int size) {
    const Layout layout(nullptr, size);
    return layout.StagingOffset() + layout.size_ * 2 * kStageBytes;
  }

  /// Operation `sequence` of rank `rank`. Sequences start with 1.
  Arrival& arrival(uint64_t sequence, int rank) const {
    return At<Arrival>(SlotOffset(sequence) + Index(rank) * sizeof(Arrival));
  }
  /// Chunks of rank `rank`'s share that someone has taken.
  TaggedCounter& taken(uint64_t sequence, int rank) const {
    return At<TaggedCounter>(
        SlotOffset(sequence) + size_ * sizeof(Arrival) + Index(rank) * sizeof(TaggedCounter));
  }
  /// Chunks, or ranks, that are finished.
  TaggedCounter& finished(uint64_t sequence) const {
    return At<TaggedCounter>(
        SlotOffset(sequence) + size_ * (sizeof(Arrival) + sizeof(TaggedCounter)));
  }
  char* inline_data(uint64_t sequence, int rank) const {
    return base_ + SlotOffset(sequence) + SlotHeaderBytes() + Index(rank) * kInlineBytes;
  }

  /// Every operation below this number has ended on rank `rank`.
  Counter& retired(int rank) const {
    return At<Counter>(CountersOffset() + (3 * Index(rank)) * sizeof(Counter));
  }
  /// Rounds that rank `rank` has written into its staging area, and rounds it has read from those
  /// of its peers.
  Counter& staged(int rank) const {
    return At<Counter>(CountersOffset() + (3 * Index(rank) + 1) * sizeof(Counter));
  }
  Counter& consumed(int rank) const {
    return At<Counter>(CountersOffset() + (3 * Index(rank) + 2) * sizeof(Counter));
  }
  char* staging(int rank, uint64_t round) const {
    return base_ + StagingOffset() + (2 * Index(rank) + round % 2) * kStageBytes;
  }

 private:
  static uint64_t Index(int rank) { return static_cast<uint64_t>(rank); }
  uint64_t SlotHeaderBytes() const {
    return size_ * (sizeof(Arrival) + sizeof(TaggedCounter)) + sizeof(TaggedCounter);
  }
  uint64_t SlotOffset(uint64_t sequence) const {
    return sequence % kSlots * (SlotHeaderBytes() + size_ * kInlineBytes);
  }
  uint64_t CountersOffset() const { return kSlots * (SlotHeaderBytes() + size_ * kInlineBytes); }
  uint64_t StagingOffset() const {
    return (CountersOffset() + 3 * size_ * sizeof(Counter) + 4095) / 4096 * 4096;
  }

  template <typename T>
  T& At(uint64_t offset) const {
    return *reinterpret_cast<T*>(base_ + offset);
  }

  char* base_;
  uint64_t size_;
};

inline uint64_t TaggedCounter::Take(uint64_t sequence, uint64_t most) {
  uint64_t seen = word.load(std::memory_order_relaxed);
  for (;;) {
    if (seen > Tag(sequence + 1) - 1) return most;  // the slot has gone to a later operation
    const uint64_t next = seen < Tag(sequence) ? 0 : Count(seen);
    if (next >= most) return most;
    if (word.compare_exchange_weak(seen, Tag(sequence) | (next + 1), std::memory_order_relaxed))
      return next;
  }
}

inline uint64_t TaggedCounter::Increment(uint64_t sequence) {
  uint64_t seen = word.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t next = (seen < Tag(sequence) ? 0 : Count(seen)) + 1;
    if (word.compare_exchange_weak(seen, Tag(sequence) | next, std::memory_order_acq_rel))
      return next;
  }
}

inline bool TaggedCounter::Reached(uint64_t sequence, uint64_t target) const {
  return word.load(std::memory_order_acquire) == (Tag(sequence) | target);
}

}  // namespace dtrun::ops::shm

#endif
