// The parts of an update that every backend has: a reduce_scatter in place, the owner's pieces, and
// an all_gather in place. What a backend can do in one pass (shm) goes before.

#include "ops/share_update.h"

#include <algorithm>
#include <vector>

#include "ops/communicator.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops {

Range ShareOf(const Counts& shares, int rank) {
  Range share;
  for (int r = 0; r < rank; ++r) share.begin += shares[static_cast<size_t>(r)];
  share.count = shares[static_cast<size_t>(rank)];
  return share;
}

void UpdateInPieces(Buffer reduced, Range share, double factor, const ShareUpdate::Piece& update) {
  const uint64_t piece = kPieceBytes / SizeOf(reduced.dtype);
  std::vector<uint64_t> scratch(factor == 1 ? 0 : kPieceBytes / sizeof(uint64_t));
  for (uint64_t done = 0; done < share.count; done += piece) {
    const uint64_t first = share.begin + done, count = std::min(piece, share.count - done);
    const void* values = reduced.Slice(first, count).data;
    if (factor != 1) {
      void* scaled = scratch.data();
      Reduce(
          &values, 1, &scaled, 1, count, reduced.dtype,
          {.op = ReduceOp::kSum, .scale = {1, factor}});
      values = scaled;
    }
    update(first, count, values);
  }
}

void Communicator::ReduceUpdateGather(
    Buffer input, Buffer output, ReduceOp op, Scale scale, Counts shares,
    const ShareUpdate& update) {
  Update(
      {
          .kind = CollectiveKind::kReduceUpdateGather,
          .input = input,
          .output = output,
          .op = op,
          .scale = scale,
          .send_counts = std::move(shares),
      },
      update);
}

void Communicator::ReduceUpdate(
    Buffer input, ReduceOp op, Scale scale, Counts shares, const ShareUpdate& update) {
  Update(
      {
          .kind = CollectiveKind::kReduceUpdate,
          .input = input,
          .op = op,
          .scale = scale,
          .send_counts = std::move(shares),
      },
      update);
}

void Communicator::Update(const Collective& collective, const ShareUpdate& update) {
  CheckArguments(collective, rank(), size());
  if (UpdateInOnePass(collective, update)) return;
  const Buffer &input = collective.input, &output = collective.output;
  const Counts& shares = collective.send_counts;
  const Range own = ShareOf(shares, rank());
  StartReduceScatter(
      input, input.Slice(own.begin, own.count), collective.op, collective.scale, shares)
      .Wait();
  UpdateInPieces(input, own, 1, update.piece);
  if (collective.kind == CollectiveKind::kReduceUpdate) {
    Barrier();
  } else {
    StartAllGather(output.Slice(own.begin, own.count), output, shares).Wait();
  }
}

}  // namespace dtrun::ops
