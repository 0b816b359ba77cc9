#ifndef DTRUN_OPS_SHM_REACH_H_
#define DTRUN_OPS_SHM_REACH_H_

#include <memory>
#include <vector>

#include "ops/communicator.h"
#include "ops/engine.h"
#include "ops/shm/meeting.h"

namespace dtrun::ops::shm {

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

}  // namespace dtrun::ops::shm

#endif
