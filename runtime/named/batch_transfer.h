#ifndef DTRUN_RUNTIME_NAMED_BATCH_TRANSFER_H_
#define DTRUN_RUNTIME_NAMED_BATCH_TRANSFER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "ops/communicator/adasum.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
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

/// The transfer of one batch.
class Transfer {
 public:
  Transfer(Batch batch, int rank, int size);

  /// The bytes of memory that the transfer needs. 0 if the batch is one tensor that moves in place.
  uint64_t memory_bytes() const;

  /// Starts the collective. `memory` has memory_bytes() bytes and stays valid until the end.
  void Start(ops::Communicator& communicator, ops::Adasum& adasum, char* memory);
  /// Returns true once the collective has finished. Throws its error.
  bool Done() const { return work_.Done(); }
  /// Writes the results to their places. Only after Done.
  void Finish();
  const Batch& batch() const { return batch_; }

 private:
  Kind kind() const { return first_->kind; }
  bool ScalesFirst() const;
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
  void Unpack();
  ops::Collective MakeCollective();

  Batch batch_;
  int rank_, size_;
  const Request* first_;
  bool direct_;
  char* memory_ = nullptr;
  ops::Work work_;
};

/// Batches in transfer. They start and end in the order in which they were added, the same on all
/// ranks. Two batches move at a time through pieces of memory that all ranks of a host map. A batch
/// that needs more than a piece has its own memory. Not thread-safe.
class TransferLine {
 public:
  /// Collective over the ranks of `communicator`. Uses a duplicate of it.
  TransferLine(ops::Communicator& communicator, ops::Engine& engine, uint64_t piece_bytes);
  ~TransferLine();

  void Add(Batch batch);
  /// Finishes each batch that is done and calls `finish` with it. Starts each batch that can start.
  /// Returns true if it finished or started any. Throws the error of a transfer.
  bool Advance(const std::function<void(const Batch&)>& finish);

 private:
  static constexpr size_t kPieces = 2;

  struct Moving {
    Transfer transfer;
    bool has_piece = false;
    std::unique_ptr<ops::Memory> own_memory = nullptr;
  };

  bool Start();
  bool Finish(const std::function<void(const Batch&)>& finish);

  std::unique_ptr<ops::Communicator> communicator_;
  ops::Adasum adasum_;  // over communicator_
  uint64_t piece_bytes_;
  std::unique_ptr<ops::Memory> pieces_;
  std::deque<Moving> moving_;
  size_t started_ = 0;  // number of transfers of moving_ that have started
  size_t pieces_taken_ = 0, next_piece_ = 0;
};

}  // namespace dtrun::runtime::named

#endif
