// Two ranks have a mailbox for each direction, and messages go through it one by one. Both sides
// post what they were asked for; when both have, each compares. Then the receiver copies from the
// sender's buffer, if it can reach that, and otherwise from pieces that the sender stages. The
// receiver's last word ends the message on both sides: a send is done when its data has arrived.

#include "ops/shm/shm_message.h"

#include <algorithm>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/shm/copy.h"

namespace dtrun::ops::shm {

ShmMessage::ShmMessage(const std::shared_ptr<ShmGroup>& group, const Collective& collective)
    : Operation(
          group->members(),
          collective.kind == CollectiveKind::kSend ? group->NextSend(collective.root)
                                                   : group->NextReceive(collective.root),
          CallOf(collective, group->rank())),
      group_(group),
      sending_(collective.kind == CollectiveKind::kSend),
      peer_(collective.root),
      buffer_(sending_ ? collective.input : collective.output),
      mailbox_(
          sending_ ? group->layout().mailbox(group->rank(), peer_)
                   : group->layout().mailbox(peer_, group->rank())) {}

Operation::Progress ShmMessage::Advance() {
  switch (phase_) {
    case Phase::kPosting: return Post();
    case Phase::kMatching: return Match();
    case Phase::kMoving: return Move();
  }
  return Progress::kNone;
}

// Messages end in order, so the mailbox is this one's when all before it have been received.
Operation::Progress ShmMessage::Post() {
  if (mailbox_.received.value.load(std::memory_order_acquire) + 1 != sequence()) {
    return Progress::kNone;
  }
  Posting& posting = mine().posting;
  posting = {};
  posting.call = call();
  if (sending_ && buffer_.count > 0) posting.input = group_->Locate(buffer_.data, buffer_.bytes());
  mine().sequence.store(sequence(), std::memory_order_release);
  group_->Ring(peer_);
  phase_ = Phase::kMatching;
  return Progress::kSome;
}

Operation::Progress ShmMessage::Match() {
  // What needs no piece of the sender's may have been received, and the mailbox be the next one's.
  if (sending_ && mailbox_.received.value.load(std::memory_order_acquire) >= sequence()) {
    return Progress::kDone;
  }
  if (theirs().sequence.load(std::memory_order_acquire) != sequence()) return Progress::kNone;
  CheckCalls();
  SetMoving();
  const Place& place = mailbox_.sender.posting.input;
  if (!sending_ && place.memory != 0) {
    Copy(
        static_cast<char*>(buffer_.data), group_->FindRegion(place.memory)->At(peer_, place.offset),
        buffer_.bytes(), StoresFor(buffer_.bytes()));
    return EndReceive();
  }
  pieces_ = place.memory != 0 ? 0 : (buffer_.bytes() + kMessageStageBytes - 1) / kMessageStageBytes;
  first_piece_ =
      (sending_ ? mailbox_.staged : mailbox_.taken).value.load(std::memory_order_relaxed);
  phase_ = Phase::kMoving;
  return Progress::kSome;
}

// Both sides see the same two calls. The receiver takes the message off the mailbox.
void ShmMessage::CheckCalls() {
  const Call &sent = mailbox_.sender.posting.call, &expected = receiver().posting.call;
  if (sent.count == expected.count && sent.dtype == expected.dtype) return;
  const auto describe = [](const Call& call) {
    return base::Text(call.count, " elements of ", NameOf(static_cast<DType>(call.dtype)));
  };
  const int rank = group_->rank();
  const std::string text = base::Text(
      "message #", sequence(), ": ", members().List({sending_ ? rank : peer_}), " sends ",
      describe(sent), ", ", members().List({sending_ ? peer_ : rank}), " expects ",
      describe(expected));
  // Whoever sees it second ends the message, so that both have seen it.
  if (mailbox_.refused.value.fetch_add(1, std::memory_order_acq_rel) % 2 == 1) EndReceive();
  throw Error(ErrorCode::kMismatch, text);
}

Operation::Progress ShmMessage::Move() {
  if (sending_ && mailbox_.received.value.load(std::memory_order_acquire) >= sequence()) {
    return Progress::kDone;
  }
  bool advanced = false;
  while (moved_ < pieces_ && (sending_ ? StagePiece() : TakePiece())) {
    ++moved_;
    advanced = true;
    group_->Ring(peer_);
  }
  if (!sending_ && moved_ == pieces_) return EndReceive();
  return advanced ? Progress::kSome : Progress::kNone;
}

uint64_t ShmMessage::PieceBytes(uint64_t piece) const {
  return std::min(kMessageStageBytes, buffer_.bytes() - piece * kMessageStageBytes);
}

bool ShmMessage::StagePiece() {
  const uint64_t piece = first_piece_ + moved_;
  if (mailbox_.taken.value.load(std::memory_order_acquire) + kMessageStages <= piece) return false;
  Copy(
      group_->layout().message_staging(group_->rank(), peer_, piece),
      static_cast<const char*>(buffer_.data) + moved_ * kMessageStageBytes, PieceBytes(moved_),
      Stores::kCached);
  mailbox_.staged.value.store(piece + 1, std::memory_order_release);
  return true;
}

bool ShmMessage::TakePiece() {
  const uint64_t piece = first_piece_ + moved_;
  if (mailbox_.staged.value.load(std::memory_order_acquire) <= piece) return false;
  Copy(
      static_cast<char*>(buffer_.data) + moved_ * kMessageStageBytes,
      group_->layout().message_staging(peer_, group_->rank(), piece), PieceBytes(moved_),
      StoresFor(buffer_.bytes()));
  mailbox_.taken.value.store(piece + 1, std::memory_order_release);
  return true;
}

Operation::Progress ShmMessage::EndReceive() {
  mailbox_.received.value.store(sequence(), std::memory_order_release);
  group_->Ring(peer_);
  return Progress::kDone;
}

std::vector<int> ShmMessage::Missing() const {
  const bool here = theirs().sequence.load(std::memory_order_acquire) >= sequence();
  return here ? std::vector<int>{} : std::vector<int>{peer_};
}

}  // namespace dtrun::ops::shm
