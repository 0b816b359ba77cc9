#include "ops/mpi/transfer.h"

namespace dtrun::ops::mpi {

const char* Agreed::DataFrom(int rank) const {
  const Header& header = headers[static_cast<size_t>(rank)];
  return header.envelope().has_data != 0 ? header.data(size()) : nullptr;
}

bool Transfer::Advance() {
  if (ended_.empty()) return false;
  handling_.swap(ended_);
  for (const uint64_t key : handling_) Handle(key);
  handling_.clear();
  HandledAll();
  return true;
}

void Transfer::Send(int peer, int tag, const char* data, uint64_t bytes, uint64_t key) {
  const auto at = static_cast<size_t>(peer);
  agreed_.group->endpoint->messages.Send(
      agreed_.group->job_ranks[at], agreed_.headers[at].envelope().tags + tag, data, bytes,
      Messages::Mode::kSynchronous, shared_from_this(), key);
}

void Transfer::Receive(int peer, int tag, char* data, uint64_t bytes, uint64_t key) {
  const auto self = static_cast<size_t>(rank());
  agreed_.group->endpoint->messages.Receive(
      agreed_.group->job_ranks[static_cast<size_t>(peer)],
      agreed_.headers[self].envelope().tags + tag, data, bytes, shared_from_this(), key);
}

// --- in pieces ----------------------------------------------------------------------------------

// A key names a place of the ring, a peer and what was sent: the piece stays in its place as long
// as it has open messages. Messages of a piece have a tag per place and step, so pieces need not
// end in order.

namespace {

constexpr uint64_t kWhats = 4, kPeers = uint64_t{1} << 32;

}  // namespace

void PiecesTransfer::SendSlice(
    Piece& piece, What what, int peer, const char* data, uint64_t bytes) {
  if (bytes == 0) return;
  ++piece.open;
  const uint64_t slot = SlotOf(piece), step = what == What::kToOwner ? 0 : 1;
  Send(
      peer, static_cast<int>(2 * slot + step), data, bytes,
      (slot * kPeers + static_cast<uint64_t>(peer)) * kWhats + static_cast<uint64_t>(what));
}

void PiecesTransfer::ReceiveSlice(Piece& piece, What what, int peer, char* data, uint64_t bytes) {
  if (bytes == 0) return;
  ++piece.open;
  const uint64_t slot = SlotOf(piece), step = what == What::kAtOwner ? 0 : 1;
  if (step == 0) ++piece.arriving;
  Receive(
      peer, static_cast<int>(2 * slot + step), data, bytes,
      (slot * kPeers + static_cast<uint64_t>(peer)) * kWhats + static_cast<uint64_t>(what));
}

void PiecesTransfer::Handle(uint64_t key) {
  Piece& piece = ring_[key / kWhats / kPeers];
  const auto what = static_cast<What>(key % kWhats);
  --piece.open;
  if (what == What::kAtOwner) --piece.arriving;
  HandlePiece(piece, what, static_cast<int>(key / kWhats % kPeers));
}

void PiecesTransfer::HandledAll() {
  for (;;) {
    while (retired_ < started_ && ring_[retired_ % window_].open == 0) ++retired_;
    if (started_ == pieces_ || started_ == retired_ + window_) return;
    Piece& piece = ring_[started_ % window_];
    piece = {.index = started_++};
    StartPiece(piece);
  }
}

}  // namespace dtrun::ops::mpi
