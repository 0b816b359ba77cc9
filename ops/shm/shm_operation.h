#ifndef DTRUN_OPS_SHM_SHM_OPERATION_H_
#define DTRUN_OPS_SHM_SHM_OPERATION_H_

#include <memory>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/reduce/reduce.h"
#include "ops/shm/shm_group.h"

namespace dtrun::ops::shm {

/// One collective on one rank: this rank's call and, once all have arrived, those of the others
/// and where their buffers can be reached.
class Meeting {
 public:
  Meeting(std::shared_ptr<ShmGroup> group, Collective collective, uint64_t sequence);
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

  /// Writes this rank's call (and its data, when it is small) where the peers see it.
  void Post();
  /// All ranks have posted.
  bool AllHere();
  std::vector<int> Missing() const;

  /// The calls of all ranks. Only once all are here.
  const Calls& calls() const { return calls_; }
  const Posting& posting(int rank) const {
    return group_->layout().arrival(sequence_, rank).posting;
  }
  /// Every rank that brings data brings so little that it came with the call.
  bool IsInline() const;
  const char* inline_data(int rank) const { return group_->layout().inline_data(sequence_, rank); }

  /// Every input that is used (output that is filled) can be reached by all ranks.
  bool InputsMapped() const;
  bool OutputsMapped() const;
  bool OutputMapped(int rank) const;
  /// Looks up where the buffers of the peers are mapped here.
  void Reach();
  /// Null where a peer's buffer is private. This rank's own can always be reached.
  char* input(int rank) const { return inputs_[static_cast<size_t>(rank)]; }
  char* output(int rank) const { return outputs_[static_cast<size_t>(rank)]; }

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
  std::vector<Called> called_;
  Calls calls_;
  std::vector<std::shared_ptr<const Region>> regions_;  // kept mapped until the end
  std::vector<char*> inputs_, outputs_;
};

inline uint64_t DivideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

/// How the data of a collective moves once all ranks are here and agree.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual Operation::Progress Advance() = 0;
};

/// Through memory that ranks reach directly; null when this collective's buffers do not allow it.
std::unique_ptr<Transfer> MakeDirectTransfer(Meeting& meeting);
/// Through the ranks' staging areas.
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
  void CheckCalls() const;
  void FinishInline();
  Progress End(Progress progress);

  Meeting meeting_;
  Phase phase_ = Phase::kPosting;
  std::unique_ptr<Transfer> transfer_;
};

/// What the ranks have found out about each other.
struct Met : public ReachedBuffers {
  Met(const std::shared_ptr<ShmGroup>& group, const Collective& collective)
      : meeting(group, collective, group->NextSequence()) {}

  bool all() const override { return mapped; }
  char* input(int rank) const override { return meeting.input(rank); }
  char* output(int rank) const override { return meeting.output(rank); }

  Meeting meeting;
  bool mapped = false;  ///< all can reach all buffers
};

/// A collective in which no data moves: ends when all ranks have called it and know where the
/// buffers of the others lie.
class MeetingOperation : public Operation {
 public:
  MeetingOperation(std::shared_ptr<Met> met, const Call& call);

  Progress Advance() override;
  std::vector<int> Missing() const override { return meeting_->Missing(); }

 private:
  void CompareCalls() const;

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
