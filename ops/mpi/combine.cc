// all_reduce, reduce_scatter and reduce. All arithmetic is Reduce's, over the inputs of all ranks
// in rank order, so every backend gives the same bits.
//
// What lies in the headers is combined from there, by every rank that wants it.
//
// Else the elements are cut into pieces, and of a piece each rank owns one slice. Step one brings
// the owner everybody's version of its slice, which it combines; in step two it hands the result to
// those who want it: all (all_reduce: reduce-scatter and all-gather by direct exchange), the root
// (reduce), or nobody else (reduce_scatter, where the slices of a rank lie in its share). Each rank
// sends and receives 2 (p - 1) / p of the bytes of an all_reduce, which is optimal, as with a ring
// (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", 2009) or with halving and doubling
// (Rabenseifner, "Optimization of collective reduction operations", 2004), in two steps of latency
// instead of 2 (p - 1) or 2 log p, and with the same order of the inputs for every element.
//
// A window of pieces is under way, so that both directions of a wire always have something to
// carry: while the result of one piece goes out, the inputs of the next ones do, and come in.

#include <algorithm>

#include "ops/mpi/transfer.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops::mpi {
namespace {

Arithmetic ArithmeticOf(const Collective& collective) {
  return {.op = collective.op, .divisor = collective.divisor, .scale = collective.scale};
}

// Which elements of the input are whose, piece by piece.
class Slices {
 public:
  explicit Slices(const Agreed& agreed)
      : calls_(agreed.calls()),
        p_(static_cast<uint64_t>(agreed.size())),
        element_(agreed.element()),
        capacity_(kMessageBytes / element_),
        shares_(agreed.collective.kind == CollectiveKind::kReduceScatter),
        count_(agreed.own_call().count) {
    uint64_t longest = shares_ ? 0 : (count_ + p_ - 1) / p_;
    for (int r = 0; shares_ && r < agreed.size(); ++r) longest = std::max(longest, Share(r).count);
    pieces_ = (longest + capacity_ - 1) / capacity_;
    stride_ = pieces_ == 0 ? 0 : (count_ + pieces_ - 1) / pieces_;
  }

  uint64_t pieces() const { return pieces_; }
  /// Elements of the longest slice.
  uint64_t capacity() const { return capacity_; }

  Range Of(uint64_t piece, int owner) const {
    if (shares_) return Cut(Share(owner), piece * capacity_, capacity_);
    const Range whole = Cut({0, count_}, piece * stride_, stride_);
    const auto r = static_cast<uint64_t>(owner);
    const uint64_t begin = whole.count * r / p_, end = whole.count * (r + 1) / p_;
    return {whole.begin + begin, end - begin};
  }

 private:
  static Range Cut(Range range, uint64_t begin, uint64_t count) {
    const uint64_t from = std::min(begin, range.count);
    return {range.begin + from, std::min(count, range.count - from)};
  }

  // Empty when it went in the headers.
  Range Share(int rank) const {
    const Range share = calls_.Share(rank);
    return FitsHeader(share.count * element_, static_cast<int>(p_)) ? Range{} : share;
  }

  Calls calls_;
  uint64_t p_, element_, capacity_;
  bool shares_;
  uint64_t count_, pieces_, stride_;
};

class CombineTransfer : public PiecesTransfer {
 public:
  explicit CombineTransfer(Agreed agreed_in)
      : PiecesTransfer(std::move(agreed_in)),
        slices_(agreed()),
        collective_(agreed().collective),
        element_(agreed().element()),
        slice_bytes_(slices_.capacity() * element_),
        blocks_(static_cast<uint64_t>(std::max(size() - 1, 1))) {
    const uint64_t pieces = kWindowBytes / (slice_bytes_ * blocks_);
    set_pieces(slices_.pieces(), std::clamp<uint64_t>(pieces, 2, Tags::kPieces));
    memory_ = scratch().Take(std::min(window(), slices_.pieces()) * blocks_ * slice_bytes_);
  }

  void Release() override { scratch().Give(std::move(memory_)); }

 private:
  void StartPiece(Piece& piece) override {
    const Range own = slices_.Of(piece.index, rank());
    for (int i = 1; i < size(); ++i) {
      const int peer = Before(i);
      ReceiveSlice(piece, What::kAtOwner, peer, Received(piece, peer), own.count * element_);
    }
    for (int i = 1; i < size(); ++i) {
      const Range slice = slices_.Of(piece.index, After(i));
      SendSlice(piece, What::kToOwner, After(i), Input(slice), slice.count * element_);
    }
    if (piece.arriving == 0) CombineOwn(piece);
  }

  void HandlePiece(Piece& piece, What what, int peer) override {
    if (what == What::kAtOwner && piece.arriving == 0) CombineOwn(piece);
    // The result may lie where the input of this slice did: that has been sent now.
    if (what == What::kToOwner && Wants(rank())) {
      const Range slice = slices_.Of(piece.index, peer);
      ReceiveSlice(piece, What::kResultIn, peer, Output(slice), slice.count * element_);
    }
  }

  void CombineOwn(Piece& piece) {
    const Range own = slices_.Of(piece.index, rank());
    if (own.count == 0) return;
    std::vector<const void*> inputs;
    for (int r = 0; r < size(); ++r) {
      inputs.push_back(r == rank() ? Input(own) : Received(piece, r));
    }
    // Who keeps no result puts it where a peer's input was.
    char* result = collective_.kind == CollectiveKind::kReduce && rank() != collective_.root
                       ? Received(piece, After(1))
                       : Output(own);
    void* output = result;
    Reduce(
        inputs.data(), size(), &output, 1, own.count, collective_.input.dtype,
        ArithmeticOf(collective_));
    for (int i = 1; i < size(); ++i) {
      if (!Wants(After(i))) continue;
      SendSlice(piece, What::kResultOut, After(i), result, own.count * element_);
    }
  }

  // Whether a rank gets the results of other owners.
  bool Wants(int rank) const {
    switch (collective_.kind) {
      case CollectiveKind::kAllReduce: return true;
      case CollectiveKind::kReduce: return rank == collective_.root;
      default: return false;
    }
  }

  const char* Input(Range slice) const {
    return static_cast<const char*>(collective_.input.data) + slice.begin * element_;
  }
  char* Output(Range slice) const {
    const bool share = collective_.kind == CollectiveKind::kReduceScatter;
    const uint64_t first = share ? agreed().calls().Share(rank()).begin : 0;
    return static_cast<char*>(collective_.output.data) + (slice.begin - first) * element_;
  }
  char* Received(const Piece& piece, int peer) const {
    const auto block = static_cast<uint64_t>(peer < rank() ? peer : peer - 1);
    return memory_.data.get() + (SlotOf(piece) * blocks_ + block) * slice_bytes_;
  }

  Slices slices_;
  const Collective& collective_;
  uint64_t element_, slice_bytes_, blocks_;
  Scratch::Block memory_;  // of a window of pieces, what has come from each peer
};

// The elements of the inputs that this rank combines from the headers.
Range OwnFromHeaders(const Agreed& agreed) {
  const uint64_t count = agreed.own_call().count;
  switch (agreed.collective.kind) {
    case CollectiveKind::kAllReduce: return {0, count};
    case CollectiveKind::kReduce: return {0, agreed.rank() == agreed.collective.root ? count : 0};
    default: return agreed.calls().Share(agreed.rank());
  }
}

void CombineHeaders(const Agreed& agreed) {
  const Collective& collective = agreed.collective;
  const Range own = OwnFromHeaders(agreed);
  if (own.count == 0 || !FitsHeader(own.count * agreed.element(), agreed.size())) return;
  std::vector<const void*> inputs;
  for (int r = 0; r < agreed.size(); ++r) inputs.push_back(agreed.DataFrom(r));
  inputs[static_cast<size_t>(agreed.rank())] =
      static_cast<const char*>(collective.input.data) + own.begin * agreed.element();
  void* output = collective.output.data;
  Reduce(
      inputs.data(), agreed.size(), &output, 1, own.count, collective.input.dtype,
      ArithmeticOf(collective));
}

}  // namespace

std::shared_ptr<Transfer> Combine(Agreed agreed) {
  const bool whole = agreed.collective.kind != CollectiveKind::kReduceScatter;
  const bool small = FitsHeader(agreed.own_call().count * agreed.element(), agreed.size());
  if (small || !whole) CombineHeaders(agreed);
  if (small) return nullptr;
  return std::make_shared<CombineTransfer>(std::move(agreed));
}

}  // namespace dtrun::ops::mpi
