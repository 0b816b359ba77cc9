#ifndef DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_OPERATION_H_
#define DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_OPERATION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/engine/progress_engine.h"
#include "ops/hierarchical/call_exchange.h"
#include "ops/hierarchical/hierarchical_group.h"

namespace dtrun::ops::hierarchical {

/// Collectives on one lane that start together.
using Parts = std::vector<Collective>;

/// A piece of a collective's data. It goes up within the host, across between the hosts, and down
/// within the host. The parts of each step are requested when the step before has ended.
class Chunk {
 public:
  virtual ~Chunk() = default;
  virtual Parts Up() { return {}; }
  virtual Parts Across() { return {}; }
  virtual Parts Down() { return {}; }
};

/// How the data of one collective is cut into chunks. The chunks of all ranks correspond.
class Plan {
 public:
  virtual ~Plan() = default;
  virtual uint64_t chunk_count() const = 0;
  virtual std::unique_ptr<Chunk> MakeChunk(uint64_t index) = 0;
  /// True if the chunks only go across, on the communicator of all ranks.
  virtual bool flat() const { return false; }
};

/// Plans a collective on whose calls all ranks agree. `calls` is used only during this call.
std::unique_ptr<Plan> MakePlan(Group& group, const Collective& collective, const Calls& calls);

/// Moves the chunks of a plan up, across and down, several at a time. All ranks make their movers
/// in the same order, so each mover has the same places on the lanes of all ranks.
class Mover {
 public:
  Mover(Group& group, std::unique_ptr<Plan> plan);

  /// Returns true if a step has started or ended.
  bool Advance();
  bool done() const { return first_ == plan_->chunk_count(); }
  /// The ranks, of the job, for which the first chunk under way waits.
  std::vector<int> Awaited() const;
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
  uint64_t first_place_[kArrived] = {};  // on each lane: the place of chunk 0
  uint64_t first_ = 0;                   // chunks before this one have arrived
  uint64_t waiting_to_cross_ = 0;        // chunks under way that have not crossed yet
  std::deque<Journey> under_way_;        // chunks first_, first_ + 1, ...
};

/// A collective over several hosts, made of other collectives. See hierarchical_operation.cc.
class HierarchicalOperation : public Operation {
 public:
  HierarchicalOperation(const std::shared_ptr<Group>& group, Collective collective);

  Progress Advance() override;
  std::vector<int> Missing() const override;
  std::vector<int> Awaited() const override;
  void GiveUp() override { AbandonParts(); }
  void TimeIsUp(const std::vector<int>& late) override { group_->flat->NoteLate(late); }

 private:
  enum class Phase { kStarted, kWaitingForTurn, kComparing, kComparingTables, kMoving };

  Progress AdvancePhase();
  Progress AwaitTurn();
  Progress Compare();
  Progress CompareTables();
  Progress Begin();
  void EndComparing();
  void AbandonParts();

  std::shared_ptr<Group> group_;
  Collective collective_;
  Phase phase_ = Phase::kStarted;
  uint64_t place_ = 0;  // on the lane of the calls
  std::optional<Exchange> exchange_, tables_;
  std::optional<CallRecords> records_;
  std::optional<Mover> mover_;
};

/// A message, on the communicator that connects its two ranks.
class HierarchicalMessage : public Operation {
 public:
  HierarchicalMessage(
      const std::shared_ptr<Group>& group, const Collective& collective, uint64_t sequence);

  Progress Advance() override;
  std::vector<int> Missing() const override;
  void GiveUp() override { work_.Abandon(); }

 private:
  std::shared_ptr<Group> group_;
  Collective collective_;
  bool started_ = false;
  Work work_;
};

}  // namespace dtrun::ops::hierarchical

#endif  // DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_OPERATION_H_
