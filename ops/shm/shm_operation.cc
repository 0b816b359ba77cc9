// Every collective begins in the same way. A rank posts its call and, if its data is small, also
// its data. When all ranks are here, each rank compares the calls. Then the data moves in one of
// three ways. All ranks choose the same way, because they see the same postings:
//
//   inline   up to kInlineBytes from every rank: the data has come with the calls, and each rank
//            reads the parts that it needs.
//   direct   the ranks reach each other's buffers, which lie in memory that all ranks map.
//   staged   otherwise: through areas that all ranks map, piece by piece.
//
// All ways combine the ranks in Reduce's balanced tree, in rank order, so all ways give the same
// bits.

#include "ops/shm/shm_operation.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/shm/shm_layout.h"

namespace dtrun::ops::shm {

ShmOperation::ShmOperation(const std::shared_ptr<ShmGroup>& group, Collective collective)
    : Operation(group->members(), group->NextSequence(), CallOf(collective, group->rank())),
      meeting_(group, std::move(collective), sequence(), call()) {}

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
  meeting_.CheckCalls();
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
    PerRank<const void*> inputs(size, nullptr);
    for (int r = 0; r < size; ++r) {
      inputs[r] = meeting_.inline_data(r) + range.begin * meeting_.element();
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

Meeting::Meeting(
    std::shared_ptr<ShmGroup> group, Collective collective, uint64_t sequence, const Call& call)
    : group_(std::move(group)),
      collective_(std::move(collective)),
      sequence_(sequence),
      element_(SizeOf(
          UsesInput(collective_, group_->rank()) ? collective_.input.dtype
                                                 : collective_.output.dtype)),
      arithmetic_{
          .op = collective_.op,
          .divisor = collective_.divisor == 0 ? group_->size() : collective_.divisor,
          .scale = collective_.scale},
      call_(call),
      called_(group_->size(), Called{.call = &call_}),
      calls_(called_.data(), group_->size()),
      inputs_(group_->size(), nullptr),
      outputs_(group_->size(), nullptr) {}

void Meeting::Post() {
  const Layout& layout = group_->layout();
  Arrival& arrival = layout.arrival(sequence_, rank());
  Posting& posting = arrival.posting;
  if (group_->compares_calls()) posting.call = call_;
  posting.input = posting.output = {};
  const uint64_t bytes = UsesInput(collective_, rank()) ? Bytes(collective_.input) : 0;
  if (bytes > 0 && bytes <= kInlineBytes) {
    std::memcpy(layout.inline_data(sequence_, rank()), collective_.input.data, bytes);
  }
  const uint64_t output_bytes = UsesOutput(collective_, rank()) ? Bytes(collective_.output) : 0;
  // Data that surely travels with the calls needs no place.
  if (bytes > kInlineBytes || output_bytes > kInlineBytes || call_.tables != 0) {
    if (bytes > 0) posting.input = group_->Locate(collective_.input.data, bytes);
    if (output_bytes > 0) {
      const bool in_place = collective_.output.data == collective_.input.data;
      posting.output = in_place && bytes == output_bytes
                           ? posting.input
                           : group_->Locate(collective_.output.data, output_bytes);
    }
  }
  uint64_t* counts = layout.counts(sequence_, rank());
  std::copy(collective_.send_counts.begin(), collective_.send_counts.end(), counts);
  std::copy(collective_.receive_counts.begin(), collective_.receive_counts.end(), counts + size());
  arrival.sequence.store(sequence_, std::memory_order_release);
}

bool Meeting::AllHere() {
  const Layout& layout = group_->layout();
  for (; arrived_ < size(); ++arrived_) {
    const Arrival& arrival = layout.arrival(sequence_, arrived_);
    if (arrival.sequence.load(std::memory_order_acquire) != sequence_) return false;
    if (!group_->compares_calls()) continue;
    const Call& call = arrival.posting.call;
    const uint64_t* counts = layout.counts(sequence_, arrived_);
    called_[arrived_] = {
        .call = &call,
        .sends = (call.tables & Call::kSends) != 0 ? counts : nullptr,
        .receives = (call.tables & Call::kReceives) != 0 ? counts + size() : nullptr,
    };
  }
  return true;
}

std::vector<int> Meeting::Missing() const {
  std::vector<int> missing;
  for (int r = 0; r < size(); ++r) {
    const Arrival& arrival = group_->layout().arrival(sequence_, r);
    if (arrival.sequence.load(std::memory_order_acquire) < sequence_) missing.push_back(r);
  }
  return missing;
}

void Meeting::CheckCalls() const {
  if (!group_->compares_calls() || calls_.Agree()) return;
  const std::string disagreement = calls_.Disagreement(*group_->members());
  group_->Retire(sequence_);
  throw Error(
      ErrorCode::kMismatch,
      base::Text("the ranks disagree on collective #", sequence_, ": ", disagreement));
}

bool Meeting::IsInline() const {
  if (Combines(kind())) return call_.count * element_ <= kInlineBytes;
  for (int r = 0; r < size(); ++r) {
    if (calls_.InputCount(r) * element_ > kInlineBytes) return false;
  }
  return true;
}

bool Meeting::InputsMapped() const {
  for (int r = 0; r < size(); ++r) {
    if (posting(r).input.memory == 0 && calls_.InputCount(r) > 0) return false;
  }
  return true;
}

bool Meeting::OutputMapped(int rank) const {
  // The root of a broadcast already has the data.
  if (kind() == CollectiveKind::kBroadcast && rank == collective_.root) return true;
  return posting(rank).output.memory != 0 || calls_.OutputCount(rank) == 0;
}

bool Meeting::OutputsMapped() const {
  for (int r = 0; r < size(); ++r) {
    if (!OutputMapped(r)) return false;
  }
  return true;
}

void Meeting::Reach() {
  for (int r = 0; r < size(); ++r) {
    const bool own = r == rank();
    inputs_[r] = own ? static_cast<char*>(collective_.input.data) : Reach(r, posting(r).input);
    outputs_[r] = own ? static_cast<char*>(collective_.output.data) : Reach(r, posting(r).output);
  }
}

char* Meeting::Reach(int rank, const Place& place) {
  if (place.memory == 0) return nullptr;
  for (const auto& region : regions_) {
    if (region->id == place.memory) return region->At(rank, place.offset);
  }
  regions_.push_back(group_->FindRegion(place.memory));
  return regions_.back()->At(rank, place.offset);
}

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
  meeting_->CheckCalls();
  SetMoving();
  met_->mapped = meeting_->InputsMapped() && meeting_->OutputsMapped();
  if (met_->mapped) meeting_->Reach();
  meeting_->group().Retire(sequence());
  return Progress::kDone;
}

// Two ranks have a mailbox for each direction. A mailbox carries one message at a time. Both sides
// post their calls. When both calls are there, each side compares them. Then the receiver copies
// from the sender's buffer if it can reach that buffer, otherwise from pieces that the sender
// stages. The receiver ends the message for both sides, so a send is done when its data has
// arrived.

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

// Messages end in order. So the mailbox is free when all earlier messages have been received.
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
  // The receiver may have received a message that needs no staged pieces. Then the mailbox may
  // already belong to the next message.
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

// Both sides see the same two calls. If the calls differ, both sides throw the same error.
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
  // The second side that sees the mismatch ends the message, so both sides have seen it.
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
