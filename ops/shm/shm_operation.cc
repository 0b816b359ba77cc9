// Every collective begins alike. A rank posts what it was asked for and, if it is small, its data
// beside it; when all ranks are here, each compares the calls. From there the data takes one of
// three ways, on which all ranks decide alike because they see the same postings:
//
//   inline   up to kInlineBytes from every rank: the data has come with the calls, and each rank
//            takes what it needs.
//   direct   ranks reach each other's buffers, which lie in memory that all of them map.
//   staged   otherwise: through areas that all ranks map, piece by piece.
//
// The combination is Reduce's balanced tree over the ranks in rank order, whoever computes it: all
// ways give the same bits.

#include "ops/shm/shm_operation.h"

#include <cstring>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::shm {

ShmOperation::ShmOperation(const std::shared_ptr<ShmGroup>& group, Collective collective)
    : Operation(group->members(), group->NextSequence(), CallOf(collective, group->rank())),
      meeting_(group, std::move(collective), sequence()) {}

Operation::Progress ShmOperation::Advance() {
  switch (phase_) {
    case Phase::kPosting: return Post();
    case Phase::kArriving: return AwaitArrivals();
    case Phase::kMoving: return End(transfer_->Advance());
  }
  return Progress::kNone;
}

Operation::Progress ShmOperation::Post() {
  if (!meeting_.group().SlotFree(sequence())) return Progress::kNone;
  meeting_.Post();
  meeting_.group().RingPeers();
  phase_ = Phase::kArriving;
  return Progress::kSome;
}

Operation::Progress ShmOperation::AwaitArrivals() {
  if (!meeting_.AllHere()) return Progress::kNone;
  CheckCalls();
  if (meeting_.IsInline()) {
    FinishInline();
    return End(Progress::kDone);
  }
  SetMoving();
  transfer_ = MakeDirectTransfer(meeting_);
  if (transfer_ == nullptr) transfer_ = MakeStagedTransfer(meeting_);
  phase_ = Phase::kMoving;
  return Progress::kSome;
}

void ShmOperation::CheckCalls() const {
  if (!meeting_.group().compares_calls() || meeting_.calls().Agree()) return;
  const std::string disagreement = meeting_.calls().Disagreement(members());
  meeting_.group().Retire(sequence());
  throw Error(
      ErrorCode::kMismatch,
      base::Text("the ranks disagree on collective #", sequence(), ": ", disagreement));
}

Operation::Progress ShmOperation::End(Progress progress) {
  if (progress == Progress::kDone) meeting_.group().Retire(sequence());
  return progress;
}

// --- inline -------------------------------------------------------------------------------------

void ShmOperation::FinishInline() {
  const Collective& collective = meeting_.collective();
  const Calls& calls = meeting_.calls();
  const int rank = meeting_.rank(), size = meeting_.size();
  char* output = static_cast<char*>(collective.output.data);
  if (Combines(collective.kind)) {
    const Range range = collective.kind == CollectiveKind::kReduceScatter
                            ? calls.Share(rank)
                            : Range{0, calls.OutputCount(rank)};
    std::vector<const void*> inputs;
    for (int r = 0; r < size; ++r) {
      inputs.push_back(meeting_.inline_data(r) + range.begin * meeting_.element());
    }
    void* to = output;
    Reduce(inputs.data(), size, &to, 1, range.count, collective.input.dtype, meeting_.arithmetic());
    return;
  }
  for (int source = 0; source < size; ++source) {
    const Range from = calls.InInput(source, rank);
    if (from.count == 0) continue;
    std::memcpy(
        output + calls.InOutput(source, rank).begin * meeting_.element(),
        meeting_.inline_data(source) + from.begin * meeting_.element(),
        from.count * meeting_.element());
  }
}

}  // namespace dtrun::ops::shm
