// A collective begins with an exchange of the ranks' calls, one collective after the other. Small
// data travels with the calls, and each rank computes its result from them. Other data moves in
// chunks (hierarchical_plan.cc), while the next collectives exchange their calls.

#include "ops/hierarchical/hierarchical_operation.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::hierarchical {

HierarchicalOperation::HierarchicalOperation(
    const std::shared_ptr<Group>& group, Collective collective)
    : Operation(group->members, ++group->started, CallOf(collective, group->rank)),
      group_(group),
      collective_(std::move(collective)) {}

namespace {

constexpr char kBecause[] = ", cannot be finished: ";

// Why a part has failed, without the name of the part.
std::string CauseIn(const std::string& error) {
  const size_t at = error.rfind(kBecause);
  return at == std::string::npos ? error : error.substr(at + sizeof kBecause - 1);
}

}  // namespace

// If a part fails because a rank is lost, some ranks of this host may have no part that fails.
Operation::Progress HierarchicalOperation::Advance() {
  if (group_->broken) std::rethrow_exception(group_->broken);
  try {
    if (const std::optional<Error> loss = group_->flat->Loss()) throw *loss;
    return AdvancePhase();
  } catch (const Error& error) {
    AbandonParts();
    if (error.code() == ErrorCode::kMismatch) throw;
    group_->broken = std::current_exception();
    if (error.code() != ErrorCode::kPeerLost) throw;
    const std::string cause = CauseIn(error.what());
    group_->flat->TellLoss(Error(ErrorCode::kPeerLost, cause, error.ranks()));
    throw Error(
        ErrorCode::kPeerLost,
        base::Text("gave up: ", NameOperation(call(), sequence(), members()), kBecause, cause),
        error.ranks());
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
// the data. So these lanes have the order of the collectives, too.
void HierarchicalOperation::EndComparing() {
  group_->exchange = nullptr;
  group_->calls_lane.Pass();
}

// A rank that has not called an earlier collective has not called this one.
std::vector<int> HierarchicalOperation::Missing() const {
  const bool called_by_all = phase_ == Phase::kMoving;
  if (called_by_all || group_->exchange == nullptr) return {};
  return group_->exchange->Missing();
}

std::vector<int> HierarchicalOperation::Awaited() const {
  std::vector<int> awaited;
  if (phase_ != Phase::kMoving) return awaited;
  for (const int job_rank : mover_->Awaited()) {
    if (const int rank = group_->RankOf(job_rank); rank >= 0) awaited.push_back(rank);
  }
  return awaited;
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
    Communicator& carrier = near ? *group_->local : *group_->flat;
    work_ = carrier.Start(std::move(part));
    started_ = true;
  }
  return work_.Done() ? Progress::kDone : Progress::kNone;
}

std::vector<int> HierarchicalMessage::Missing() const {
  return work_.Missing().empty() ? std::vector<int>{} : std::vector<int>{collective_.root};
}

// Up, across and down are separate lanes on separate communicators, so a chunk that goes down waits
// for no chunk that goes up. On each lane, the parts start in the order of the operations, and
// within an operation in the order of the chunks. So the communicators see the same order on all
// ranks, without any exchange.

namespace {

// The most chunks of an operation that have not crossed yet, and the most chunks under way. While
// some chunks are on the wire, the next chunks get ready. Chunks that have crossed may wait, so
// that a rank that does not run at the moment does not leave the wire idle.
constexpr uint64_t kCrossing = 6;
constexpr uint64_t kUnderWay = 32;

}  // namespace

Mover::Mover(Group& group, std::unique_ptr<Plan> plan) : group_(group), plan_(std::move(plan)) {
  for (const Step step : {kUp, kAcross, kDown}) {
    if (plan_->flat() && step != kAcross) continue;
    first_place_[step] = LaneOf(step).Take(plan_->chunk_count());
  }
}

bool Mover::Advance() {
  bool advanced = false;
  while (under_way_.size() < kUnderWay && waiting_to_cross_ < kCrossing) {
    const uint64_t next = first_ + under_way_.size();
    if (next == plan_->chunk_count()) break;
    under_way_.push_back({.chunk = plan_->MakeChunk(next)});
    if (plan_->flat()) under_way_.back().step = kAcross;
    ++waiting_to_cross_;
    advanced = true;
  }
  for (uint64_t i = 0; i < under_way_.size(); ++i) {
    advanced |= AdvanceJourney(under_way_[i], first_ + i);
  }
  while (!under_way_.empty() && under_way_.front().step == kArrived) {
    under_way_.pop_front();
    ++first_;
  }
  return advanced;
}

bool Mover::AdvanceJourney(Journey& journey, uint64_t index) {
  bool advanced = false;
  while (journey.step != kArrived) {
    if (!journey.started) {
      if (!StartStep(journey, index)) break;
      advanced = true;
    }
    const bool ended = std::all_of(
        journey.works.begin(), journey.works.end(), [](const Work& work) { return work.Done(); });
    if (!ended) break;
    if (journey.step == kAcross) --waiting_to_cross_;
    const bool last = journey.step == kDown || plan_->flat();
    journey.step = last ? kArrived : static_cast<Step>(journey.step + 1);
    journey.started = false;
    journey.works.clear();
    advanced = true;
  }
  return advanced;
}

bool Mover::StartStep(Journey& journey, uint64_t index) {
  Lane& lane = LaneOf(journey.step);
  if (!lane.IsTurnOf(first_place_[journey.step] + index)) return false;
  for (Collective& part : PartsOf(journey)) {
    journey.works.push_back(CommunicatorOf(journey.step)->Start(std::move(part)));
  }
  lane.Pass();
  journey.started = true;
  return true;
}

Parts Mover::PartsOf(Journey& journey) const {
  switch (journey.step) {
    case kUp: return journey.chunk->Up();
    case kAcross: return journey.chunk->Across();
    case kDown: return journey.chunk->Down();
    case kArrived: break;
  }
  return {};
}

Lane& Mover::LaneOf(Step step) const {
  if (step == kUp) return group_.up_lane;
  if (step == kDown) return group_.down_lane;
  return plan_->flat() ? group_.flat_lane : group_.across_lane;
}

Communicator* Mover::CommunicatorOf(Step step) const {
  if (step == kUp) return group_.local.get();
  if (step == kDown) return group_.down.get();
  return plan_->flat() ? group_.flat.get() : group_.rail.get();
}

std::vector<int> Mover::Awaited() const {
  std::set<int> ranks;
  for (const Journey& journey : under_way_) {
    for (const Work& work : journey.works) {
      const std::vector<int> awaited = work.Awaited();
      ranks.insert(awaited.begin(), awaited.end());
    }
    if (!ranks.empty()) break;
  }
  return {ranks.begin(), ranks.end()};
}

void Mover::Abandon() {
  for (Journey& journey : under_way_) {
    for (Work& work : journey.works) work.Abandon();
  }
}

}  // namespace dtrun::ops::hierarchical
