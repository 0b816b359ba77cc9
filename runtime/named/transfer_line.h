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

/// Batches on their way, which start and end in the order in which they were added: the same on all
/// ranks. Two move at a time, through pieces of memory that all ranks of a host map; what needs
/// more than a piece has memory of its own. Not thread-safe.
class TransferLine {
 public:
  /// Collective over the ranks of `communicator`, of which it takes a duplicate.
  TransferLine(ops::Communicator& communicator, ops::Engine& engine, uint64_t piece_bytes);
  ~TransferLine();

  void Add(Batch batch);
  /// Ends what is done, calling `finish` with its batch, and starts what can start. Whether there
  /// was any. Throws the error of a transfer.
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
  size_t started_ = 0;  // of moving_
  size_t pieces_taken_ = 0, next_piece_ = 0;
};

}  // namespace dtrun::runtime::named

#endif
