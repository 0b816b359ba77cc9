#ifndef DTRUN_OPS_SHM_SHM_MESSAGE_H_
#define DTRUN_OPS_SHM_SHM_MESSAGE_H_

#include <memory>
#include <vector>

#include "ops/engine.h"
#include "ops/shm/shm_group.h"

namespace dtrun::ops::shm {

/// One side of a message between two ranks of a shm group. See shm_message.cc for the algorithm.
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

#endif
