#ifndef DTRUN_RUNTIME_NAMED_BATCH_PLAN_H_
#define DTRUN_RUNTIME_NAMED_BATCH_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/named/named_request.h"
#include "runtime/named/tensor_table.h"

namespace dtrun::runtime::named {

/// A tensor that is ready, with this rank's part of it.
struct Item {
  Part* part;  ///< null where this rank has joined
  std::shared_ptr<const Requests> requests;
  std::vector<uint8_t> participants;  ///< by rank; empty: all
  const Request* any;                 ///< of some rank that takes part

  bool Participates(int rank) const {
    return participants.empty() || participants[static_cast<size_t>(rank)] != 0;
  }
  const Request& request(int rank) const { return *requests->by_rank[static_cast<size_t>(rank)]; }
  /// Rows that rank `rank` brings, and that it sends to rank `to` of `size` where rows are dealt.
  uint64_t RowsOf(int rank) const { return Participates(rank) ? request(rank).rows() : 0; }
  uint64_t RowsTo(int rank, int to, int size) const {
    return Participates(rank) ? request(rank).RowsTo(to, size) : 0;
  }
};

/// Tensors that move in one collective.
using Batch = std::vector<Item>;

/// Deals ready tensors to batches of at most `batch_bytes` each, the same on all ranks; what is
/// larger is alone. Tensors of one batch go the same way; those between them that do not have
/// batches of their own. In the order of the first tensor of each. Pure.
std::vector<Batch> PlanBatches(std::vector<Ready> ready, int size, uint64_t batch_bytes);

}  // namespace dtrun::runtime::named

#endif
