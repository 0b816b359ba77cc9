#ifndef DTRUN_RUNTIME_NAMED_TRANSFER_LINE_H_
#define DTRUN_RUNTIME_NAMED_TRANSFER_LINE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "ops/communicator/adasum.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "runtime/named/batch_transfer.h"

namespace dtrun::runtime::named {

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
