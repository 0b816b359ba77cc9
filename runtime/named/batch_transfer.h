#ifndef DTRUN_RUNTIME_NAMED_BATCH_TRANSFER_H_
#define DTRUN_RUNTIME_NAMED_BATCH_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/communicator/adasum.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/named/batch_plan.h"

namespace dtrun::runtime::named {

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
  bool IsDirect() const;
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
