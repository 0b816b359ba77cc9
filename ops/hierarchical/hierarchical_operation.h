#ifndef DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_OPERATION_H_
#define DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_OPERATION_H_

#include <memory>
#include <optional>
#include <vector>

#include "ops/engine.h"
#include "ops/hierarchical/call_records.h"
#include "ops/hierarchical/exchange.h"
#include "ops/hierarchical/group.h"
#include "ops/hierarchical/mover.h"

namespace dtrun::ops::hierarchical {

/// One collective, made of others. See hierarchical_operation.cc.
class HierarchicalOperation : public Operation {
 public:
  HierarchicalOperation(const std::shared_ptr<Group>& group, Collective collective);

  Progress Advance() override;
  std::vector<int> Missing() const override;
  void GiveUp() override;

 private:
  enum class Phase { kStarted, kWaitingForTurn, kComparing, kComparingTables, kMoving };

  Progress AdvancePhase();
  Progress AwaitTurn();
  Progress Compare();
  Progress CompareTables();
  Progress Begin();
  void EndComparing();

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

/// Done when no other collective of the group is under way on this rank.
class Quiet : public Operation {
 public:
  explicit Quiet(const std::shared_ptr<Group>& group);
  Progress Advance() override;
  std::vector<int> Missing() const override { return {}; }

 private:
  std::shared_ptr<Group> group_;
};

}  // namespace dtrun::ops::hierarchical

#endif
