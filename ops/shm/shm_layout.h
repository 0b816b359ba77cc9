#ifndef DTRUN_OPS_SHM_SHM_LAYOUT_H_
#define DTRUN_OPS_SHM_SHM_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ops/collective/collective.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops::shm {

inline constexpr size_t kCacheLine = 64;
/// Operations that may be under way at once; a further one waits until the oldest has ended on
/// every rank.
inline constexpr uint64_t kSlots = 16;
/// A rank's contribution up to this size travels beside its arrival.
inline constexpr uint64_t kInlineBytes = 4096;
/// A rank's staging area has this many parts, so that it can write one while its peers read others.
inline constexpr uint64_t kStages = 4;
inline constexpr uint64_t kMostStageBytes = 1 << 20;
/// The same between two ranks, for messages.
inline constexpr uint64_t kMessageStages = 4;
inline constexpr uint64_t kMessageStageBytes = 64 << 10;

/// Where a buffer lies for other ranks: in this rank's block of allocation `memory`, or (0) in
/// private memory.
struct Place {
  uint32_t memory;
  uint64_t offset;
};

/// What a rank has called, so that its peers can compare before data moves.
struct Posting {
  Call call;
  Place input, output;
};

/// Two cache lines that say: this rank has started operation `sequence`, and which.
struct alignas(kCacheLine) Arrival {
  std::atomic<uint64_t> sequence;
  Posting posting;
};

/// A counter that starts anew with every operation that uses its slot: the upper part names the
/// operation, the lower part counts, so nobody has to reset it and a rank that is late cannot
/// disturb the next operation.
struct alignas(kCacheLine) TaggedCounter {
  std::atomic<uint64_t> word;

  static constexpr int kCountBits = 24;
  static uint64_t Tag(uint64_t sequence) { return sequence << kCountBits; }
  static uint64_t Count(uint64_t word) { return word & ((uint64_t{1} << kCountBits) - 1); }

  /// The count of operation `sequence`, which is `most` at most: takes the next number below
  /// `most`, or returns `most`.
  uint64_t Take(uint64_t sequence, uint64_t most);
  /// Adds `n` to the count of operation `sequence` and returns the sum. The caller knows that the
  /// operation is under way.
  uint64_t Add(uint64_t sequence, uint64_t n);
  /// False too when the slot has gone to a later operation, which cannot start before `sequence`
  /// has reached `target`.
  bool Reached(uint64_t sequence, uint64_t target) const;
};

struct alignas(kCacheLine) Counter {
  std::atomic<uint64_t> value;
};

/// Messages from one rank to another, one at a time, numbered from 1.
struct Mailbox {
  Arrival sender;
  /// By turns: while the sender still reads one, the receiver may have ended that message and be at
  /// the next, but not at the one after it.
  Arrival receivers[2];
  Counter received;       ///< messages that have ended
  Counter refused;        ///< times that a side has found the two calls to differ
  Counter staged, taken;  ///< pieces, over all messages
};

/// Where things lie in the segment that all ranks of a communicator map. Pure arithmetic over
/// `size` ranks; zeroed memory is a valid start. Pages that nobody touches cost nothing.
class Layout {
 public:
  Layout(char* base, int size) : base_(base), size_(static_cast<uint64_t>(size)) {}

  static uint64_t Bytes(int size) { return Layout(nullptr, size).MessagesEnd(); }

  /// Operation `sequence` of rank `rank`. Sequences start with 1.
  Arrival& arrival(uint64_t sequence, int rank) const {
    return At<Arrival>(SlotOffset(sequence) + Index(rank) * sizeof(Arrival));
  }
  /// Chunks of rank `rank`'s part of the work that someone has taken.
  TaggedCounter& taken(uint64_t sequence, int rank) const {
    return At<TaggedCounter>(
        SlotOffset(sequence) + size_ * sizeof(Arrival) + Index(rank) * sizeof(TaggedCounter));
  }
  /// Chunks that are finished.
  TaggedCounter& finished(uint64_t sequence) const {
    return At<TaggedCounter>(
        SlotOffset(sequence) + size_ * (sizeof(Arrival) + sizeof(TaggedCounter)));
  }
  /// The counts by rank that rank `rank` has given: `size` to send, `size` to receive.
  uint64_t* counts(uint64_t sequence, int rank) const {
    return &At<uint64_t>(
        SlotOffset(sequence) + SlotHeaderBytes() + Index(rank) * 2 * size_ * sizeof(uint64_t));
  }
  char* inline_data(uint64_t sequence, int rank) const {
    return base_ + SlotOffset(sequence) + SlotHeaderBytes() + CountsBytes() +
           Index(rank) * kInlineBytes;
  }

  /// Every operation below this number has ended on rank `rank`.
  Counter& retired(int rank) const { return counter(rank, 0); }
  /// Rounds that rank `rank` has written into its staging area, has combined, and needs no more.
  Counter& staged(int rank) const { return counter(rank, 1); }
  Counter& combined(int rank) const { return counter(rank, 2); }
  Counter& consumed(int rank) const { return counter(rank, 3); }
  /// Not 0: rank `rank` starts nothing more.
  Counter& left(int rank) const { return counter(rank, 4); }
  char* staging(int rank, uint64_t round) const {
    return base_ + StagingOffset() + (kStages * Index(rank) + round % kStages) * kMostStageBytes;
  }

  Mailbox& mailbox(int sender, int receiver) const {
    return At<Mailbox>(MailboxOffset() + Pair(sender, receiver) * sizeof(Mailbox));
  }
  char* message_staging(int sender, int receiver, uint64_t piece) const {
    return base_ + MessagesOffset() +
           (kMessageStages * Pair(sender, receiver) + piece % kMessageStages) * kMessageStageBytes;
  }

 private:
  static constexpr uint64_t kCounters = 5;  // of a rank

  static uint64_t Index(int rank) { return static_cast<uint64_t>(rank); }
  static uint64_t Align(uint64_t offset, uint64_t to) { return (offset + to - 1) / to * to; }
  uint64_t Pair(int sender, int receiver) const { return Index(sender) * size_ + Index(receiver); }
  uint64_t SlotHeaderBytes() const {
    return size_ * (sizeof(Arrival) + sizeof(TaggedCounter)) + sizeof(TaggedCounter);
  }
  uint64_t CountsBytes() const { return Align(2 * size_ * size_ * sizeof(uint64_t), kCacheLine); }
  uint64_t SlotBytes() const { return SlotHeaderBytes() + CountsBytes() + size_ * kInlineBytes; }
  uint64_t SlotOffset(uint64_t sequence) const { return sequence % kSlots * SlotBytes(); }
  uint64_t CountersOffset() const { return kSlots * SlotBytes(); }
  uint64_t MailboxOffset() const { return CountersOffset() + kCounters * size_ * sizeof(Counter); }
  uint64_t StagingOffset() const {
    return Align(MailboxOffset() + size_ * size_ * sizeof(Mailbox), 4096);
  }
  uint64_t MessagesOffset() const { return StagingOffset() + size_ * kStages * kMostStageBytes; }
  uint64_t MessagesEnd() const {
    return MessagesOffset() + size_ * size_ * kMessageStages * kMessageStageBytes;
  }
  Counter& counter(int rank, uint64_t which) const {
    return At<Counter>(CountersOffset() + (kCounters * Index(rank) + which) * sizeof(Counter));
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
    if (seen >= Tag(sequence + 1)) return most;  // the slot has gone to a later operation
    const uint64_t next = seen < Tag(sequence) ? 0 : Count(seen);
    if (next >= most) return most;
    if (word.compare_exchange_weak(seen, Tag(sequence) | (next + 1), std::memory_order_relaxed))
      return next;
  }
}

inline uint64_t TaggedCounter::Add(uint64_t sequence, uint64_t n) {
  uint64_t seen = word.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t next = (seen < Tag(sequence) ? 0 : Count(seen)) + n;
    if (word.compare_exchange_weak(seen, Tag(sequence) | next, std::memory_order_acq_rel))
      return next;
  }
}

inline bool TaggedCounter::Reached(uint64_t sequence, uint64_t target) const {
  return word.load(std::memory_order_acquire) == (Tag(sequence) | target);
}

/// Results that are larger than this go past the cache: most of them would have left it again
/// before anybody reads them.
inline constexpr uint64_t kStreamingBytes = 8 << 20;

inline Stores StoresFor(uint64_t bytes) {
  return bytes >= kStreamingBytes ? Stores::kStreaming : Stores::kCached;
}

/// Nothing when source and destination are the same place, as in operations in place.
inline void Copy(char* to, const char* from, uint64_t bytes, Stores stores) {
  if (to != from && bytes > 0) ops::Copy(to, from, bytes, stores);
}

}  // namespace dtrun::ops::shm

#endif  // DTRUN_OPS_SHM_SHM_LAYOUT_H_
