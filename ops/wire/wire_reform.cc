// In each attempt, every rank sends the set of lost ranks that it knows to all other ranks that it
// does not take for lost. If all sets of an attempt are equal, the ranks agree. Otherwise, and as
// soon as a rank whose set has not come is lost for any of them, the ranks try again with the union
// of the sets. The set only grows, so there are at most as many attempts as ranks.
//
// A rank may be lost after some ranks have its set and before the others do. The first ranks then
// agree, and the others make another attempt. Each rank that has agreed keeps the result, and
// answers a later attempt with it. The others take this result: the next operation of the new
// communicator fails, and all ranks of it form it anew.
//
// A rank for which an operation has waited too long (kTimeout) may be stopped, or may only be late
// itself. It is left out if it is the last that has not come, and does not come for a while. It
// learns that the other ranks go on without it when it continues.

#include "ops/wire/wire_reform.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "dtrun/error.h"

namespace dtrun::ops::wire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{500};  // with a late rank, after all others came

// A proposal or a result: a context, then the lost ranks.
std::string TextOf(uint64_t context, const std::set<int>& lost) {
  std::string text(reinterpret_cast<const char*>(&context), sizeof context);
  for (const int32_t rank : lost) text.append(reinterpret_cast<const char*>(&rank), sizeof rank);
  return text;
}

uint64_t ContextIn(std::string_view text) {
  uint64_t context = 0;
  std::memcpy(&context, text.data(), sizeof context);
  return context;
}

std::set<int> LostIn(std::string_view text) {
  std::set<int> lost;
  for (size_t at = sizeof(uint64_t); at + sizeof(int32_t) <= text.size(); at += sizeof(int32_t)) {
    int32_t rank = 0;
    std::memcpy(&rank, text.data() + at, sizeof rank);
    lost.insert(rank);
  }
  return lost;
}

}  // namespace

ReformOperation::ReformOperation(
    std::shared_ptr<Group> group, std::shared_ptr<const Members> members,
    std::shared_ptr<Survivors> survivors)
    : Operation(std::move(members), 1, CallOf({.kind = CollectiveKind::kBarrier}, group->rank)),
      group_(std::move(group)),
      survivors_(std::move(survivors)) {}

Operation::Progress ReformOperation::Advance() {
  group_->endpoint->wire->Poll(polled_);
  if (const std::string& result = box().reformed; !result.empty()) {
    // Others may be in this attempt, too, and need the result.
    Finish(LostIn(result), ContextIn(result), attempt_ == 0 ? 0 : attempt_ - 1);
    return Progress::kDone;
  }
  Learn();
  if (!proposed_) Propose();
  const bool in_vain = std::any_of(
      asked_.begin(), asked_.end(), [this](int rank) { return lost_.count(rank) != 0; });
  const std::vector<int> missing = Missing();
  if (in_vain || LeaveOut(missing)) {
    proposed_ = false;
    return Progress::kSome;
  }
  if (!missing.empty()) return Progress::kNone;
  return Compare() ? Progress::kDone : Progress::kSome;
}

// Adds the ranks that are lost, as far as this rank and the proposals of others know.
void ReformOperation::Learn() {
  for (const LostPeer& peer : group_->endpoint->wire->lost()) {
    if (const int rank = group_->RankOf(peer.rank); rank >= 0) lost_.insert(rank);
  }
  std::set<int> told;
  if (box().loss.lost_rank >= 0) told.insert(box().loss.lost_rank);
  for (const auto& [of, proposal] : box().proposals)
    if (of.first >= attempt_) told.merge(LostIn(proposal.text()));
  for (const int rank : told) {
    if (lost_.insert(rank).second)
      group_->endpoint->wire->Doubt(group_->job_ranks[static_cast<size_t>(rank)]);
  }
  if (lost_.count(group_->rank) != 0)
    throw Error(ErrorCode::kPeerLost, "the other ranks have lost this rank, and go on without it");
}

// Some ranks may have agreed in an earlier attempt, so each attempt has another context.
void ReformOperation::Propose() {
  ++attempt_;
  offer_ = group_->endpoint->NewContext(group_->job_ranks[static_cast<size_t>(group_->rank)]);
  proposed_ = true;
  patient_since_.reset();
  asked_.clear();
  for (int rank = 0; rank < group_->size; ++rank) {
    if (rank != group_->rank && lost_.count(rank) == 0) asked_.push_back(rank);
  }
  SendNote(
      *group_->endpoint, group_->context, group_->job_ranks, outbox_,
      {.channel = Channel::kReform,
       .sequence = attempt_,
       .source = group_->rank,
       .text = TextOf(offer_, lost_)},
      asked_);
}

// Returns true if this rank stops waiting for late ranks.
bool ReformOperation::LeaveOut(const std::vector<int>& missing) {
  const auto is_late = [this](int rank) { return group_->late.count(rank) != 0; };
  if (missing.empty() || !std::all_of(missing.begin(), missing.end(), is_late)) return false;
  if (!patient_since_) patient_since_ = Clock::now();
  if (Clock::now() - *patient_since_ < kPatience) return false;
  lost_.insert(missing.begin(), missing.end());
  return true;
}

// Returns true if all sets are equal.
bool ReformOperation::Compare() {
  const std::set<int> mine = LostIn(outbox_->memory.back().text());
  uint64_t context = offer_;
  bool equal = true;
  for (const int rank : asked_) {
    const std::string_view text = box().proposals.at({attempt_, rank}).text();
    std::set<int> others = LostIn(text);
    equal &= others == mine;
    lost_.merge(others);
    if (rank == asked_.front() && rank < group_->rank) context = ContextIn(text);
  }
  if (!equal) {
    proposed_ = false;
    return false;
  }
  Finish(mine, context, attempt_);
  return true;
}

void ReformOperation::Finish(const std::set<int>& lost, uint64_t context, uint64_t attempt) {
  survivors_->context = context;
  for (int rank = 0; rank < group_->size; ++rank) {
    if (lost.count(rank) == 0) survivors_->ranks.push_back(rank);
  }
  Endpoint& endpoint = *group_->endpoint;
  endpoint.mailroom->KeepResult(
      group_->context, {attempt, TextOf(context, lost), group_->rank, group_->job_ranks});
  for (const int rank : lost) {
    SendNote(
        endpoint, group_->context, group_->job_ranks, outbox_,
        {.channel = Channel::kLoss,
         .sequence = static_cast<uint64_t>(rank + 1),
         .source = group_->rank,
         .number = rank,
         .text = "the other ranks go on without it, because it did not answer them"},
        {rank});
  }
}

void AnswerLateProposals(Endpoint& endpoint) {
  for (const auto& [context, source] : endpoint.mailroom->TakeLateProposals()) {
    const ReformResult& result = endpoint.mailroom->result(context);
    SendNote(
        endpoint, context, result.job_ranks, std::make_shared<Outbox>(),
        {.channel = Channel::kReformed, .source = result.rank, .text = result.text}, {source});
  }
}

std::vector<int> ReformOperation::Missing() const {
  std::vector<int> missing;
  for (const int rank : asked_) {
    if (box().proposals.count({attempt_, rank}) == 0) missing.push_back(rank);
  }
  return missing;
}

}  // namespace dtrun::ops::wire
