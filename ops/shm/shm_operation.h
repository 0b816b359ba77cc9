#ifndef DTRUN_OPS_SHM_SHM_OPERATION_H_
#define DTRUN_OPS_SHM_SHM_OPERATION_H_

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/reduce/reduce.h"
#include "ops/shm/shm_group.h"

namespace dtrun::ops::shm {

/// One value per rank. Up to 8 ranks need no allocation: its time would be a noticeable part of a
/// small collective's.
template <typename T>
class PerRank {
 public:
  PerRank(int size, const T& value) : many_(size > kFew ? static_cast<size_t>(size) : 0) {
    std::fill_n(data(), size, value);
  }

  T* data() { return many_.empty() ? few_.data() : many_.data(); }
  const T* data() const { return many_.empty() ? few_.data() : many_.data(); }
  T& operator[](int rank) { return data()[rank]; }
  const T& operator[](int rank) const { return data()[rank]; }

 private:
  static constexpr int kFew = 8;

  std::array<T, kFew> few_;
  std::vector<T> many_;
};

/// One collective on one rank. It holds this rank's call and, once all ranks have arrived, the
/// calls and the reachable buffers of the other ranks.
class Meeting {
 public:
  /// `call`: the collective as this rank's call.
  Meeting(
      std::shared_ptr<ShmGroup> group, Collective collective, uint64_t sequence, const Call& call);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  ShmGroup& group() const { return *group_; }
  const Collective& collective() const { return collective_; }
  uint64_t sequence() const { return sequence_; }
  CollectiveKind kind() const { return collective_.kind; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  uint64_t element() const { return element_; }
  const Arithmetic& arithmetic() const { return arithmetic_; }

  /// Writes this rank's call, and small data, to memory that the peers see.
  void Post();
  /// True if all ranks have posted.
  bool AllHere();
  std::vector<int> Missing() const;

  /// Ends the collective and throws kMismatch if the calls differ. Call this, and the functions
  /// below, only after AllHere() returned true.
  void CheckCalls() const;
  /// The calls of all ranks.
  const Calls& calls() const { return calls_; }
  const Posting& posting(int rank) const {
    return group_->layout().arrival(sequence_, rank).posting;
  }
  /// True if the inputs of all ranks are small enough to travel with the calls.
  bool IsInline() const;
  const char* inline_data(int rank) const { return group_->layout().inline_data(sequence_, rank); }

  /// True if all ranks can reach every input that is used, or every output that is filled.
  bool InputsMapped() const;
  bool OutputsMapped() const;
  bool OutputMapped(int rank) const;
  /// Finds the addresses of the peers' buffers in this process.
  void Reach();
  /// Null if the buffer of a peer is private. This rank can always reach its own.
  char* input(int rank) const { return inputs_[rank]; }
  char* output(int rank) const { return outputs_[rank]; }

 private:
  uint64_t Bytes(const Buffer& buffer) const { return buffer.count * element_; }
  char* Reach(int rank, const Place& place);

  std::shared_ptr<ShmGroup> group_;
  Collective collective_;
  uint64_t sequence_;
  uint64_t element_;  // bytes
  Arithmetic arithmetic_;
  int arrived_ = 0;  // ranks [0, arrived_) have been seen
  Call call_;
  PerRank<Called> called_;
  Calls calls_;
  std::vector<std::shared_ptr<const Region>> regions_;  // kept mapped until the end
  PerRank<char*> inputs_, outputs_;
};

inline uint64_t DivideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

/// Moves the data of a collective, after all ranks have arrived and agree.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual Operation::Progress Advance() = 0;
};

/// A transfer through memory that ranks reach directly. Null if the buffers do not allow it.
std::unique_ptr<Transfer> MakeDirectTransfer(Meeting& meeting);
/// A transfer through the staging areas of the ranks.
std::unique_ptr<Transfer> MakeStagedTransfer(Meeting& meeting);

/// One collective of a shm group, on one rank. See shm_operation.cc for the algorithm.
class ShmOperation : public Operation {
 public:
  ShmOperation(const std::shared_ptr<ShmGroup>& group, Collective collective);

  Progress Advance() override;
  std::vector<int> Missing() const override { return meeting_.Missing(); }

 private:
  enum class Phase { kPosting, kArriving, kMoving };

  Progress Post();
  Progress AwaitArrivals();
  void FinishInline();
  Progress End(Progress progress);

  Meeting meeting_;
  Phase phase_ = Phase::kPosting;
  std::unique_ptr<Transfer> transfer_;
};

/// The buffers of all ranks after a meeting.
struct Met : public ReachedBuffers {
  Met(const std::shared_ptr<ShmGroup>& group, const Collective& collective)
      : meeting(group, collective, group->NextSequence(), CallOf(collective, group->rank())) {}

  bool all() const override { return mapped; }
  char* input(int rank) const override { return meeting.input(rank); }
  char* output(int rank) const override { return meeting.output(rank); }

  Meeting meeting;
  bool mapped = false;  ///< all ranks can reach all buffers
};

/// A collective that moves no data. It ends when all ranks have called it and know the addresses of
/// the other ranks' buffers.
class MeetingOperation : public Operation {
 public:
  MeetingOperation(std::shared_ptr<Met> met, const Call& call);

  Progress Advance() override;
  std::vector<int> Missing() const override { return meeting_->Missing(); }

 private:
  std::shared_ptr<Met> met_;
  Meeting* meeting_;
  bool posted_ = false;
};

/// One side of a message between two ranks of a shm group. See shm_operation.cc for the algorithm.
class ShmMessage : public Operation {
 public:
  ShmMessage(const std::shared_ptr<ShmGroup>& group, const Collective& collective);

  Progress Advance() override;
  std::vector<int> Missing() const override;

 private:
  enum class Phase { kPosting, kMatching, kMoving };

  Progress Post();
  Progress Match();
  void CheckCalls();
  Progress Move();
  bool StagePiece();
  bool TakePiece();
  Progress EndReceive();

  Arrival& receiver() const { return mailbox_.receivers[sequence() % 2]; }
  Arrival& mine() const { return sending_ ? mailbox_.sender : receiver(); }
  Arrival& theirs() const { return sending_ ? receiver() : mailbox_.sender; }
  uint64_t PieceBytes(uint64_t piece) const;

  std::shared_ptr<ShmGroup> group_;
  bool sending_;
  int peer_;
  Buffer buffer_;
  Mailbox& mailbox_;
  Phase phase_ = Phase::kPosting;
  uint64_t first_piece_ = 0, pieces_ = 0, moved_ = 0;
};

}  // namespace dtrun::ops::shm

#endif  // DTRUN_OPS_SHM_SHM_OPERATION_H_
