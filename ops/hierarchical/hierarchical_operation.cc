// A collective begins with an exchange of the ranks' calls, one collective after the other. What is
// small travels with the calls, and each rank computes its result from them: nothing else is sent.
// The rest moves in chunks (plan.cc), while the calls of the next collectives are exchanged.

#include "ops/hierarchical/hierarchical_operation.h"

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::hierarchical {

HierarchicalOperation::HierarchicalOperation(
    const std::shared_ptr<Group>& group, Collective collective)
    : Operation(group->members, ++group->started, CallOf(collective, group->rank)),
      group_(group),
      collective_(std::move(collective)) {}

Operation::Progress HierarchicalOperation::Advance() {
  if (group_->broken) std::rethrow_exception(group_->broken);
  try {
    return AdvancePhase();
  } catch (const Error& error) {
    AbandonParts();
    if (error.code() != ErrorCode::kMismatch) group_->broken = std::current_exception();
    throw;
  }
}

Operation::Progress HierarchicalOperation::AdvancePhase() {
  switch (phase_) {
    case Phase::kStarted:
      // In the order in which the communicator's thread starts operations.
      place_ = group_->calls_lane.Take();
      phase_ = Phase::kWaitingForTurn;
      return Progress::kSome;
    case Phase::kWaitingForTurn: return AwaitTurn();
    case Phase::kComparing: return Compare();
    case Phase::kComparingTables: return CompareTables();
    case Phase::kMoving:
      if (!mover_->Advance()) return Progress::kNone;
      return mover_->done() ? Progress::kDone : Progress::kSome;
  }
  return Progress::kNone;
}

Operation::Progress HierarchicalOperation::AwaitTurn() {
  if (!group_->calls_lane.IsTurnOf(place_)) return Progress::kNone;
  exchange_.emplace(*group_, MakeRecord(*group_, collective_));
  group_->exchange = &*exchange_;
  phase_ = Phase::kComparing;
  return Progress::kSome;
}

Operation::Progress HierarchicalOperation::Compare() {
  if (!exchange_->Advance()) return Progress::kNone;
  records_.emplace(*group_, *exchange_);
  if (!records_->NeedTables()) return Begin();
  tables_.emplace(*group_, MakeTables(*group_, collective_));
  group_->exchange = &*tables_;
  phase_ = Phase::kComparingTables;
  return Progress::kSome;
}

Operation::Progress HierarchicalOperation::CompareTables() {
  if (!tables_->Advance()) return Progress::kNone;
  records_->AddTables(*tables_);
  return Begin();
}

Operation::Progress HierarchicalOperation::Begin() {
  EndComparing();
  const Calls calls = records_->calls();
  if (!calls.Agree()) {
    throw Error(
        ErrorCode::kMismatch,
        base::Text(
            "the ranks disagree on collective #", sequence(), ": ", calls.Disagreement(members())));
  }
  SetMoving();
  if (records_->AllInline()) {
    records_->FinishInline(collective_);
    return Progress::kDone;
  }
  mover_.emplace(*group_, MakePlan(*group_, collective_, calls));
  phase_ = Phase::kMoving;
  return Progress::kSome;
}

// All ranks pass the turn on after the same exchange, and then take their places on the lanes of
// the data: these have the order of the collectives too.
void HierarchicalOperation::EndComparing() {
  group_->exchange = nullptr;
  group_->calls_lane.Pass();
}

// Who has not called an earlier collective has not called this one.
std::vector<int> HierarchicalOperation::Missing() const {
  const bool called_by_all = phase_ == Phase::kMoving;
  if (called_by_all || group_->exchange == nullptr) return {};
  return group_->exchange->Missing();
}

void HierarchicalOperation::AbandonParts() {
  if (exchange_) exchange_->Abandon();
  if (tables_) tables_->Abandon();
  if (mover_) mover_->Abandon();
}

// --- messages -----------------------------------------------------------------------------------

HierarchicalMessage::HierarchicalMessage(
    const std::shared_ptr<Group>& group, const Collective& collective, uint64_t sequence)
    : Operation(group->members, sequence, CallOf(collective, group->rank)),
      group_(group),
      collective_(collective) {}

Operation::Progress HierarchicalMessage::Advance() {
  if (!started_) {
    Collective part = collective_;
    const bool near = group_->on_this_host(part.root);
    if (near) part.root = group_->hosts.local_rank(part.root);
    work_ = (near ? group_->local : group_->flat)->Start(std::move(part));
    started_ = true;
  }
  return work_.Done() ? Progress::kDone : Progress::kNone;
}

std::vector<int> HierarchicalMessage::Missing() const {
  return work_.Missing().empty() ? std::vector<int>{} : std::vector<int>{collective_.root};
}

}  // namespace dtrun::ops::hierarchical
