#ifndef DTRUN_RUNTIME_NAMED_TRANSFER_H_
#define DTRUN_RUNTIME_NAMED_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/communicator.h"
#include "runtime/named/submission.h"
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
};

/// Tensors that move in one collective.
using Batch = std::vector<Item>;

/// Deals ready tensors to batches of at most `batch_bytes` each, the same on all ranks; what is
/// larger is alone. Tensors of one batch go the same way; those between them that do not have
/// batches of their own. In the order of the first tensor of each. Pure.
std::vector<Batch> PlanBatches(const std::vector<Ready>& ready, int size, uint64_t batch_bytes);

/// One batch on its way.
class Transfer {
 public:
  Transfer(Batch batch, int rank, int size);

  /// Memory that it needs besides the tensors' own, which is used where it lies if it is alone.
  uint64_t memory_bytes() const;

  /// Starts the collective; `memory` has as many bytes as are needed, and is kept until the end.
  void Start(ops::Communicator& communicator, char* memory);
  /// Throws its error.
  bool Done() const { return work_.Done(); }
  /// After Done: the results are where they belong.
  void Finish();
  const Batch& batch() const { return batch_; }

 private:
  Kind kind() const { return first_->kind; }
  bool ScalesFirst() const;
  bool IsDirect() const;
  uint64_t Rows(const Item& item, int rank) const;
  uint64_t RowsFromTo(const Item& item, int from, int to) const;
  uint64_t Bytes(const Item& item, int from, int to) const;
  ops::Counts CountsFrom(int rank) const;
  ops::Counts CountsTo(int rank) const;

  void MakeResult(const Item& item);
  void Pack();
  void PackWhole();
  void PackByDestination();
  void UnpackWhole();
  void UnpackBySource();
  void PutWhole(const Item& item, char* to) const;
  ops::Collective MakeCollective();

  Batch batch_;
  int rank_, size_;
  const Request* first_;
  bool direct_;
  char* memory_ = nullptr;
  ops::Work work_;
};

}  // namespace dtrun::runtime::named

#endif
