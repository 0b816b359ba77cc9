// Broadcast of more than the headers hold, in pieces. Every rank but the root owns one slice of a
// piece: the root sends it to the owner, who hands it to the others. So the root sends the bytes
// once, everybody receives them once, and no rank sends more than the root: scatter and all-gather
// (van de Geijn, "On global combine operations", 1994), but without a slice for the root, which
// would have to send that one p - 1 times. Two ranks: the root sends, and that is all.

#include <algorithm>

#include "ops/mpi/transfer.h"

namespace dtrun::ops::mpi {
namespace {

class BroadcastTransfer : public PiecesTransfer {
 public:
  explicit BroadcastTransfer(Agreed agreed_in)
      : PiecesTransfer(std::move(agreed_in)),
        root_(agreed().collective.root),
        owners_(static_cast<uint64_t>(size() - 1)),
        bytes_(agreed().own_call().count * agreed().element()),
        data_(static_cast<char*>(
            rank() == root_ ? agreed().collective.input.data : agreed().collective.output.data)) {
    const uint64_t pieces = (bytes_ + owners_ * kMessageBytes - 1) / (owners_ * kMessageBytes);
    set_pieces(
        pieces, std::clamp<uint64_t>(kWindowBytes / kMessageBytes / owners_, 4, Tags::kPieces));
    stride_ = (bytes_ + pieces - 1) / pieces;
  }

 private:
  void StartPiece(Piece& piece) override {
    for (int i = 1; i < size(); ++i) {
      const int peer = rank() == root_ ? After(i) : Before(i);
      if (rank() == root_) {
        SendSlice(piece, What::kToOwner, peer, Data(piece, peer), Bytes(piece, peer));
      } else if (peer == root_) {
        ReceiveSlice(piece, What::kAtOwner, peer, Data(piece, rank()), Bytes(piece, rank()));
      } else {
        ReceiveSlice(piece, What::kResultIn, peer, Data(piece, peer), Bytes(piece, peer));
      }
    }
  }

  void HandlePiece(Piece& piece, What what, int) override {
    if (what != What::kAtOwner) return;
    for (int i = 1; i < size(); ++i) {
      if (After(i) == root_) continue;
      SendSlice(piece, What::kResultOut, After(i), Data(piece, rank()), Bytes(piece, rank()));
    }
  }

  uint64_t Offset(const Piece& piece, uint64_t owner) const {
    const uint64_t begin = std::min(piece.index * stride_, bytes_);
    return begin + std::min(stride_, bytes_ - begin) * owner / owners_;
  }
  // Owners are counted from the rank behind the root.
  uint64_t OwnerAt(int rank) const {
    return static_cast<uint64_t>((rank - root_ - 1 + size()) % size());
  }
  char* Data(const Piece& piece, int owner) const { return data_ + Offset(piece, OwnerAt(owner)); }
  uint64_t Bytes(const Piece& piece, int owner) const {
    return Offset(piece, OwnerAt(owner) + 1) - Offset(piece, OwnerAt(owner));
  }

  int root_;
  uint64_t owners_, bytes_, stride_ = 0;
  char* data_;
};

}  // namespace

std::shared_ptr<Transfer> Broadcast(Agreed agreed) {
  return std::make_shared<BroadcastTransfer>(std::move(agreed));
}

}  // namespace dtrun::ops::mpi
