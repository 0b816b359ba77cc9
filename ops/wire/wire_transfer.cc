#include "ops/wire/wire_transfer.h"

#include <algorithm>
#include <functional>

#include "ops/reduce/reduce.h"

namespace dtrun::ops::wire {

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
  agreed_.group->endpoint->wire->Send(
      agreed_.group->job_ranks[at], agreed_.headers[at].envelope().tags + tag, data, bytes,
      Wire::Mode::kSynchronous, shared_from_this(), key);
}

void Transfer::Receive(int peer, int tag, char* data, uint64_t bytes, uint64_t key) {
  const auto self = static_cast<size_t>(rank());
  agreed_.group->endpoint->wire->Receive(
      agreed_.group->job_ranks[static_cast<size_t>(peer)],
      agreed_.headers[self].envelope().tags + tag, data, bytes, shared_from_this(), key);
}

// --- in pieces ----------------------------------------------------------------------------------

// A key consists of a place in the ring, a peer, and the role of the message. A piece keeps its
// place as long as it has open messages. Each place has one tag for each step, so pieces may end in
// any order.

void PiecesTransfer::SendSlice(
    Piece& piece, What what, int peer, const char* data, uint64_t bytes) {
  if (bytes == 0) return;
  ++piece.open;
  const uint64_t slot = SlotOf(piece), step = what == What::kToOwner ? 0 : 1;
  const uint64_t key = KeyOf(piece, peer, what);
  open_[key] = true;
  Send(peer, static_cast<int>(2 * slot + step), data, bytes, key);
}

void PiecesTransfer::ReceiveSlice(Piece& piece, What what, int peer, char* data, uint64_t bytes) {
  if (bytes == 0) return;
  ++piece.open;
  const uint64_t slot = SlotOf(piece), step = what == What::kAtOwner ? 0 : 1;
  if (step == 0) ++piece.arriving;
  const uint64_t key = KeyOf(piece, peer, what);
  open_[key] = true;
  Receive(peer, static_cast<int>(2 * slot + step), data, bytes, key);
}

void PiecesTransfer::Handle(uint64_t key) {
  const auto peers = static_cast<uint64_t>(size());
  Piece& piece = ring_[key / kWhats / peers];
  const auto what = static_cast<What>(key % kWhats);
  open_[key] = false;
  --piece.open;
  if (what == What::kAtOwner) --piece.arriving;
  HandlePiece(piece, what, static_cast<int>(key / kWhats % peers));
}

// The second step of a peer may wait for the first step of another one, so the first step counts.
std::vector<int> PiecesTransfer::Awaited() const {
  std::vector<int> first, second;
  if (retired_ == started_) return first;
  const Piece& oldest = ring_[retired_ % window_];
  const auto is_open = [&](int peer, What what) { return open_[KeyOf(oldest, peer, what)]; };
  for (int peer = 0; peer < size(); ++peer) {
    if (is_open(peer, What::kToOwner) || is_open(peer, What::kAtOwner)) first.push_back(peer);
    if (is_open(peer, What::kResultOut) || is_open(peer, What::kResultIn)) second.push_back(peer);
  }
  return first.empty() ? second : first;
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

// Broadcast of data that is too large for the headers, in pieces. Every rank but the root owns one
// slice of a piece. The root sends the slice to its owner, and the owner sends it to the other
// ranks. So the root sends each byte once, every other rank receives each byte once, and no rank
// sends more than the root. This is scatter and all-gather (van de Geijn, "On global combine
// operations", 1994), but without a slice for the root. The root would have to send such a slice p
// - 1 times. With two ranks, the root sends the data and no other step is needed.

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
    const uint64_t most = owners_ * agreed().message_bytes();
    const uint64_t pieces = (bytes_ + most - 1) / most;
    set_pieces(pieces, std::clamp<uint64_t>(kWindowBytes / most, 4, Tags::kPieces));
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
  // Owners are counted from the rank after the root.
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

// all_reduce, reduce_scatter and reduce. Reduce does all arithmetic, over the inputs of all ranks
// in rank order, so every backend gives the same bits.
//
// If the data lies in the headers, every rank that wants the result combines it from there.
//
// Otherwise the elements are cut into pieces, and each rank owns one slice of every piece. In step
// one, all ranks send the owner their inputs for its slice, and the owner combines them. In step
// two, the owner sends the result to the ranks that want it:
//
//   all_reduce      all ranks; this is reduce-scatter and all-gather by direct exchange
//   reduce          the root
//   reduce_scatter  no other rank, because the slices of a rank lie in its share
//
// In an all_reduce, each rank sends and receives 2 (p - 1) / p of the bytes, which is optimal. A
// ring (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", 2009) and halving and
// doubling (Rabenseifner, "Optimization of collective reduction operations", 2004) move as many
// bytes. Direct exchange takes two steps of latency instead of 2 (p - 1) or 2 log p. It also
// combines the inputs in the same order for every element.
//
// A window of pieces is under way, so that both directions of a wire are always busy. While the
// result of one piece goes out, the inputs of the next pieces go out and come in.

namespace {

Arithmetic ArithmeticOf(const Collective& collective) {
  return {.op = collective.op, .divisor = collective.divisor, .scale = collective.scale};
}

// The slices of the input, by piece and owner.
class Slices {
 public:
  explicit Slices(const Agreed& agreed)
      : calls_(agreed.calls()),
        p_(static_cast<uint64_t>(agreed.size())),
        element_(agreed.element()),
        capacity_(agreed.message_bytes() / element_),
        shares_(agreed.collective.kind == CollectiveKind::kReduceScatter),
        count_(agreed.own_call().count),
        in_header_([&agreed](uint64_t bytes) { return agreed.InHeader(bytes); }) {
    uint64_t longest = shares_ ? 0 : (count_ + p_ - 1) / p_;
    for (int r = 0; shares_ && r < agreed.size(); ++r) longest = std::max(longest, Share(r).count);
    pieces_ = (longest + capacity_ - 1) / capacity_;
    stride_ = pieces_ == 0 ? 0 : (count_ + pieces_ - 1) / pieces_;
  }

  uint64_t pieces() const { return pieces_; }
  /// The most elements of a slice.
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

  // Empty if the share went in the headers.
  Range Share(int rank) const {
    const Range share = calls_.Share(rank);
    return in_header_(share.count * element_) ? Range{} : share;
  }

  Calls calls_;
  uint64_t p_, element_, capacity_;
  bool shares_;
  uint64_t count_, pieces_, stride_;
  std::function<bool(uint64_t bytes)> in_header_;
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
    // The result may overwrite the input of this slice, which has been sent by now.
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
    // A rank that keeps no result writes it over the input of a peer.
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
  Scratch::Block memory_;  // the inputs from each peer, for a window of pieces
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
  if (own.count == 0 || !agreed.InHeader(own.count * agreed.element())) return;
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
  const bool small = agreed.InHeader(agreed.own_call().count * agreed.element());
  if (small || !whole) CombineHeaders(agreed);
  if (small) return nullptr;
  return std::make_shared<CombineTransfer>(std::move(agreed));
}

}  // namespace dtrun::ops::wire
