// Only non-blocking calls of MPI are used, on bytes; all arithmetic is Reduce's, so that every
// backend gives the same bits.
//
// all_reduce   in pieces. Of a piece each rank owns one slice: all-to-all brings it everybody's
// version of that slice, it
//              combines them in the tree over the ranks, and all-gather hands the results round.
//              Each rank sends and receives 2 (p - 1) / p of the bytes, as a ring does (Patarasu
//              and Yuan, 2009), with two steps of latency instead of 2 (p - 1). The next piece is
//              on the wire while this one is combined:
//                  all-to-all 0, all-to-all 1, all-gather 0, all-to-all 2, all-gather 1, ...
// all_gather   as one call, or rank by rank in pieces when MPI's counts (ints) are too small.
// broadcast    in pieces.

#include "ops/mpi/mpi_operation.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops::mpi {
namespace {

constexpr uint64_t kReducePiece = 8 << 20;  // bytes
constexpr uint64_t kMovePiece = 256 << 20;  // bytes

char* Bytes(const Buffer& buffer) { return static_cast<char*>(buffer.data); }

// One piece of an all_reduce: who owns which bytes of it, and what came in for this rank's slice.
class Piece {
 public:
  Piece(const Group& group, Buffer buffer) : group_(group), buffer_(buffer) {
    const uint64_t element = SizeOf(buffer.dtype), p = static_cast<uint64_t>(group.size);
    for (uint64_t r = 0; r < p; ++r) {
      const uint64_t begin = buffer.count * r / p, end = buffer.count * (r + 1) / p;
      offsets_.push_back(Int(begin * element));
      lengths_.push_back(Int((end - begin) * element));
    }
    const int mine = lengths_[static_cast<size_t>(group.rank)];
    received_.resize(static_cast<size_t>(mine) * p);
    received_lengths_.assign(p, mine);
    for (int r = 0; r < group.size; ++r) received_offsets_.push_back(r * mine);
  }

  void StartAllToAll() {
    Check(
        MPI_Ialltoallv(
            buffer_.data, lengths_.data(), offsets_.data(), MPI_BYTE, received_.data(),
            received_lengths_.data(), received_offsets_.data(), MPI_BYTE, group_.comm,
            request_.get()),
        "MPI_Ialltoallv");
  }

  void ReduceMine(ReduceOp op) {
    const auto rank = static_cast<size_t>(group_.rank);
    std::vector<const void*> inputs;
    for (const int offset : received_offsets_) inputs.push_back(received_.data() + offset);
    void* output = Bytes(buffer_) + offsets_[rank];
    const uint64_t count = static_cast<uint64_t>(lengths_[rank]) / SizeOf(buffer_.dtype);
    Reduce(inputs.data(), group_.size, &output, 1, count, buffer_.dtype, {.op = op});
  }

  void StartAllGather() {
    Check(
        MPI_Iallgatherv(
            MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer_.data, lengths_.data(), offsets_.data(),
            MPI_BYTE, group_.comm, request_.get()),
        "MPI_Iallgatherv");
  }

  bool Test() { return request_.Test(); }

 private:
  const Group& group_;
  Buffer buffer_;
  std::vector<int> offsets_, lengths_, received_offsets_, received_lengths_;  // bytes, by rank
  std::vector<char> received_;
  Request request_;
};

class AllReduceTransfer : public Transfer {
 public:
  AllReduceTransfer(const Group& group, Buffer buffer, ReduceOp op) : group_(group), op_(op) {
    const uint64_t piece = kReducePiece / SizeOf(buffer.dtype);
    for (uint64_t begin = 0; begin < buffer.count; begin += piece) {
      slices_.push_back(buffer.Slice(begin, std::min(piece, buffer.count - begin)));
    }
    pieces_.resize(slices_.size());
  }

  bool Advance() override {
    while (StartNextCall()) {
    }
    while (finished_ < gathering_ && pieces_[finished_]->Test()) pieces_[finished_++].reset();
    return finished_ == pieces_.size();
  }

 private:
  bool StartNextCall() {
    if (scattering_ < pieces_.size() && scattering_ <= gathering_ + 1) {
      pieces_[scattering_] = std::make_unique<Piece>(group_, slices_[scattering_]);
      pieces_[scattering_++]->StartAllToAll();
      return true;
    }
    if (gathering_ == pieces_.size() || !pieces_[gathering_]->Test()) return false;
    pieces_[gathering_]->ReduceMine(op_);
    pieces_[gathering_++]->StartAllGather();
    return true;
  }

  const Group& group_;
  ReduceOp op_;
  std::vector<Buffer> slices_;
  std::vector<std::unique_ptr<Piece>> pieces_;
  // Pieces whose all-to-all has been started, whose all-gather has been started, and which are
  // done.
  size_t scattering_ = 0, gathering_ = 0, finished_ = 0;
};

// Hands round a row of byte ranges, each from a rank of its own, in pieces.
class BroadcastTransfer : public Transfer {
 public:
  struct Range {
    int root;
    char* data;
    uint64_t bytes;
  };
  BroadcastTransfer(const Group& group, const std::vector<Range>& ranges) : group_(group) {
    for (const Range& range : ranges) {
      for (uint64_t begin = 0; begin < range.bytes; begin += kMovePiece) {
        pieces_.push_back(
            {range.root, range.data + begin, std::min(kMovePiece, range.bytes - begin)});
      }
    }
  }

  bool Advance() override {
    for (; finished_ < pieces_.size(); ++finished_) {
      if (started_ == finished_) StartPiece(pieces_[started_++]);
      if (!request_.Test()) return false;
    }
    return true;
  }

 private:
  void StartPiece(const Range& piece) {
    Check(
        MPI_Ibcast(piece.data, Int(piece.bytes), MPI_BYTE, piece.root, group_.comm, request_.get()),
        "MPI_Ibcast");
  }

  const Group& group_;
  std::vector<Range> pieces_;
  size_t started_ = 0, finished_ = 0;
  Request request_;
};

class AllGatherTransfer : public Transfer {
 public:
  AllGatherTransfer(const Group& group, Buffer input, Buffer output) {
    const int bytes = Int(input.bytes());
    Check(
        MPI_Iallgather(
            input.data, bytes, MPI_BYTE, output.data, bytes, MPI_BYTE, group.comm, request_.get()),
        "MPI_Iallgather");
  }
  bool Advance() override { return request_.Test(); }

 private:
  Request request_;
};

class NoTransfer : public Transfer {
 public:
  bool Advance() override { return true; }
};

std::unique_ptr<Transfer> LargeAllGather(const Group& group, Buffer input, Buffer output) {
  std::vector<BroadcastTransfer::Range> ranges;
  for (int r = 0; r < group.size; ++r) {
    ranges.push_back({r, Bytes(output) + static_cast<uint64_t>(r) * input.bytes(), input.bytes()});
  }
  std::memcpy(ranges[static_cast<size_t>(group.rank)].data, input.data, input.bytes());
  return std::make_unique<BroadcastTransfer>(group, ranges);
}

std::unique_ptr<Transfer> StartTransfer(const Group& group, const Collective& collective) {
  const Buffer& input = collective.input;
  if (input.count == 0) return std::make_unique<NoTransfer>();
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      return std::make_unique<AllReduceTransfer>(group, input, collective.op);
    case CollectiveKind::kBroadcast:
      return std::make_unique<BroadcastTransfer>(
          group,
          std::vector<BroadcastTransfer::Range>{{collective.root, Bytes(input), input.bytes()}});
    case CollectiveKind::kAllGather:
      if (input.bytes() > kMovePiece) return LargeAllGather(group, input, collective.output);
      return std::make_unique<AllGatherTransfer>(group, input, collective.output);
    default: break;
  }
  return std::make_unique<NoTransfer>();
}

bool SameCall(const OldCall& a, const OldCall& b) {
  return a.sequence == b.sequence && a.count == b.count && a.kind == b.kind && a.dtype == b.dtype &&
         a.op == b.op && a.root == b.root;
}

std::string DescribeCall(const OldCall& call) {
  return ops::Describe(Collective{
      .kind = static_cast<CollectiveKind>(call.kind),
      .input = Buffer(nullptr, call.count, static_cast<DType>(call.dtype)),
      .output = {},
      .op = static_cast<ReduceOp>(call.op),
      .root = call.root,
  });
}

}  // namespace

MpiOperation::MpiOperation(std::shared_ptr<Group> group, const Collective& collective)
    : Operation(group->members, group->started + 1, CallOf(collective, group->rank)),
      group_(std::move(group)),
      collective_(collective),
      mine_{
          ++group_->started,
          collective.input.count,
          static_cast<int32_t>(collective.kind),
          static_cast<int32_t>(collective.input.dtype),
          static_cast<int32_t>(collective.op),
          collective.root},
      calls_(static_cast<size_t>(group_->size)) {}

Operation::Progress MpiOperation::Advance() {
  if (group_->ended + 1 != mine_.sequence) return Progress::kNone;
  if (!comparing_) StartComparing();
  if (transfer_ == nullptr) {
    if (!compare_.Test()) return Progress::kNone;
    CheckCalls();
    transfer_ = StartTransfer(*group_, collective_);
  }
  if (!transfer_->Advance()) return Progress::kNone;
  ++group_->ended;
  return Progress::kDone;
}

void MpiOperation::StartComparing() {
  Check(
      MPI_Iallgather(
          &mine_, sizeof mine_, MPI_BYTE, calls_.data(), sizeof mine_, MPI_BYTE, group_->comm,
          compare_.get()),
      "MPI_Iallgather");
  comparing_ = true;
}

void MpiOperation::CheckCalls() const {
  std::map<std::string, std::vector<int>> sides;
  bool same = true;
  for (int r = 0; r < group_->size; ++r) {
    const OldCall& call = calls_[static_cast<size_t>(r)];
    same &= SameCall(call, calls_[0]);
    sides[DescribeCall(call)].push_back(r);
  }
  if (same) return;
  ++group_->ended;
  std::vector<std::string> texts;
  for (const auto& [call, ranks] : sides)
    texts.push_back(base::RankList(ranks) + " called " + call);
  throw Error(
      ErrorCode::kMismatch,
      base::Text(
          "the ranks disagree on collective #", mine_.sequence, ": ", base::Join(texts, "; ")));
}

}  // namespace dtrun::ops::mpi
