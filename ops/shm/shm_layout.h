#ifndef DTRUN_OPS_SHM_SHM_LAYOUT_H_
#define DTRUN_OPS_SHM_SHM_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ops/collective/collective.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops::shm {

inline constexpr size_t kCacheLine = 64;
/// The most operations under way at once. A further operation waits until the oldest has ended on
/// every rank.
inline constexpr uint64_t kSlots = 16;
/// An input up to this size travels with the rank's arrival.
inline constexpr uint64_t kInlineBytes = 4096;
/// The parts of a rank's staging area. The rank can write one part while its peers read others.
inline constexpr uint64_t kStages = 4;
inline constexpr uint64_t kMostStageBytes = 1 << 20;
/// The parts of the staging area between two ranks, for messages.
inline constexpr uint64_t kMessageStages = 4;
inline constexpr uint64_t kMessageStageBytes = 64 << 10;

/// The place of a buffer for other ranks: in this rank's block of region `memory`. If `memory` is
/// 0, the buffer is private.
struct Place {
  uint32_t memory;
  uint64_t offset;
};

/// The call of a rank. The peers compare it before data moves.
struct Posting {
  Call call;
  Place input, output;
};

/// Two cache lines that say that this rank has started operation `sequence`, with its call.
struct alignas(kCacheLine) Arrival {
  std::atomic<uint64_t> sequence;
  Posting posting;
};

/// A counter that starts at 0 for every operation that uses its slot. The upper bits hold the
/// number of the operation, the lower bits count. So the counter needs no reset, and a late rank
/// cannot disturb the next operation.
struct alignas(kCacheLine) TaggedCounter {
  std::atomic<uint64_t> word;

  static constexpr int kCountBits = 24;
  static uint64_t Tag(uint64_t sequence) { return sequence << kCountBits; }
  static uint64_t Count(uint64_t word) { return word & ((uint64_t{1} << kCountBits) - 1); }

  /// Takes the next number below `most` for operation `sequence`. Returns `most` if there is none
  /// left.
  uint64_t Take(uint64_t sequence, uint64_t most);
  /// Adds `n` to the count of operation `sequence` and returns the sum. The operation must be under
  /// way.
  uint64_t Add(uint64_t sequence, uint64_t n);
  /// True if the count of operation `sequence` is `target`. Also false if the slot belongs to a
  /// later operation, but that cannot start before the count has reached `target`.
  bool Reached(uint64_t sequence, uint64_t target) const;
};

struct alignas(kCacheLine) Counter {
  std::atomic<uint64_t> value;
};

/// Messages from one rank to another, one at a time, numbered from 1.
struct Mailbox {
  Arrival sender;
  /// Used alternately. While the sender still reads one, the receiver may have ended that message
  /// and started the next one, but not the one after it.
  Arrival receivers[2];
  Counter received;       ///< messages that have ended
  Counter refused;        ///< how often a side found that the two calls differ
  Counter staged, taken;  ///< pieces, over all messages
};

/// The layout of the segment that all ranks of a communicator map. Only arithmetic over `size`
/// ranks. Zeroed memory is a valid start. Untouched pages cost no memory.
class Layout {
 public:
  Layout(char* base, int size) : base_(base), size_(static_cast<uint64_t>(size)) {}

  static uint64_t Bytes(int size) { return Layout(nullptr, size).MessagesEnd(); }

  /// The arrival of rank `rank` at operation `sequence`. Sequences start with 1.
  Arrival& arrival(uint64_t sequence, int rank) const {
    return At<Arrival>(SlotOffset(sequence) + Index(rank) * sizeof(Arrival));
  }
  /// The number of chunks of rank `rank`'s part that any rank has taken.
  TaggedCounter& taken(uint64_t sequence, int rank) const {
    return At<TaggedCounter>(
        SlotOffset(sequence) + size_ * sizeof(Arrival) + Index(rank) * sizeof(TaggedCounter));
  }
  /// The number of finished chunks.
  TaggedCounter& finished(uint64_t sequence) const {
    return At<TaggedCounter>(
        SlotOffset(sequence) + size_ * (sizeof(Arrival) + sizeof(TaggedCounter)));
  }
  /// The counts by rank that rank `rank` passed: `size` to send, then `size` to receive.
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
  /// The rounds that rank `rank` has written into its staging area, has combined, and no longer
  /// needs.
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
  static constexpr uint64_t kCounters = 5;  // per rank

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
    if (seen >= Tag(sequence + 1)) return most;  // the slot belongs to a later operation
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

/// Results of this size or more are stored past the cache. Most of their lines would leave the
/// cache before they are read.
inline constexpr uint64_t kStreamingBytes = 8 << 20;

inline Stores StoresFor(uint64_t bytes) {
  return bytes >= kStreamingBytes ? Stores::kStreaming : Stores::kCached;
}

/// Copies unless source and destination are the same memory, as in operations in place.
inline void Copy(char* to, const char* from, uint64_t bytes, Stores stores) {
  if (to != from && bytes > 0) ops::Copy(to, from, bytes, stores);
}

}  // namespace dtrun::ops::shm

#endif  // DTRUN_OPS_SHM_SHM_LAYOUT_H_
