#ifndef DTRUN_OPS_HIERARCHICAL_MOVER_H_
#define DTRUN_OPS_HIERARCHICAL_MOVER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "ops/hierarchical/group.h"
#include "ops/hierarchical/plan.h"

namespace dtrun::ops::hierarchical {

/// Sends the chunks of a plan up, across and down, several at a time. All ranks make their movers
/// in the same order: each then has its turns on the lanes.
class Mover {
 public:
  Mover(Group& group, std::unique_ptr<Plan> plan);

  /// True when something was started or has ended.
  bool Advance();
  bool done() const { return first_ == plan_->chunk_count(); }
  void Abandon();

 private:
  enum Step { kUp, kAcross, kDown, kArrived };

  struct Journey {
    std::unique_ptr<Chunk> chunk = {};
    Step step = kUp;
    bool started = false;
    std::vector<Work> works = {};  // of this step
  };

  bool AdvanceJourney(Journey& journey, uint64_t index);
  bool StartStep(Journey& journey, uint64_t index);
  Parts PartsOf(Journey& journey) const;
  Lane& LaneOf(Step step) const;
  Communicator* CommunicatorOf(Step step) const;

  Group& group_;
  std::unique_ptr<Plan> plan_;
  uint64_t first_place_[kArrived] = {};  // on each lane: chunk 0's
  uint64_t first_ = 0;                   // chunks before this one have arrived
  std::deque<Journey> under_way_;        // chunks first_, first_ + 1, ...
};

}  // namespace dtrun::ops::hierarchical

#endif
