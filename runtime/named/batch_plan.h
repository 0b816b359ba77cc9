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
  Part* part;  ///< null if this rank has joined
  std::shared_ptr<const Requests> requests;
  std::vector<uint8_t> participants;  ///< by rank; empty: all
  const Request* any;                 ///< the request of some rank that takes part

  bool Participates(int rank) const {
    return participants.empty() || participants[static_cast<size_t>(rank)] != 0;
  }
  const Request& request(int rank) const { return *requests->by_rank[static_cast<size_t>(rank)]; }
  /// RowsOf: the rows that rank `rank` contributes. RowsTo: the rows that it sends to rank `to` of
  /// `size`, if its rows are dealt to the ranks.
  uint64_t RowsOf(int rank) const { return Participates(rank) ? request(rank).rows() : 0; }
  uint64_t RowsTo(int rank, int to, int size) const {
    return Participates(rank) ? request(rank).RowsTo(to, size) : 0;
  }
};

/// Tensors that move in one collective.
using Batch = std::vector<Item>;

/// Deals ready tensors to batches of at most `batch_bytes` each. A larger tensor has its own batch.
/// The tensors of a batch can share a collective. They need not follow each other in `ready`. The
/// batches are in the order of their first tensors. Pure; the same on all ranks.
std::vector<Batch> PlanBatches(std::vector<Ready> ready, int size, uint64_t batch_bytes);

}  // namespace dtrun::runtime::named

#endif
