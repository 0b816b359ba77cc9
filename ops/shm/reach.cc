#include "ops/shm/reach.h"

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::shm {

MeetingOperation::MeetingOperation(std::shared_ptr<Met> met, const Call& call)
    : Operation(met->meeting.group().members(), met->meeting.sequence(), call),
      met_(std::move(met)),
      meeting_(&met_->meeting) {}

Operation::Progress MeetingOperation::Advance() {
  if (!posted_) {
    if (!meeting_->group().SlotFree(sequence())) return Progress::kNone;
    meeting_->Post();
    meeting_->group().RingPeers();
    posted_ = true;
  }
  if (!meeting_->AllHere()) return Progress::kNone;
  CompareCalls();
  SetMoving();
  met_->mapped = meeting_->InputsMapped() && meeting_->OutputsMapped();
  if (met_->mapped) meeting_->Reach();
  meeting_->group().Retire(sequence());
  return Progress::kDone;
}

void MeetingOperation::CompareCalls() const {
  if (!meeting_->group().compares_calls() || meeting_->calls().Agree()) return;
  const std::string disagreement = meeting_->calls().Disagreement(members());
  meeting_->group().Retire(sequence());
  throw Error(
      ErrorCode::kMismatch,
      base::Text("the ranks disagree on collective #", sequence(), ": ", disagreement));
}

}  // namespace dtrun::ops::shm
