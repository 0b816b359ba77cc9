#ifndef DTRUN_OPS_MPI_MPI_OPERATION_H_
#define DTRUN_OPS_MPI_MPI_OPERATION_H_

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/communicator.h"
#include "ops/engine.h"
#include "ops/mpi/mpi_calls.h"

namespace dtrun::ops::mpi {

/// What the operations of one communicator share on this rank.
struct Group {
  std::shared_ptr<const Members> members;
  MPI_Comm comm;
  int rank, size;
  uint64_t started = 0;  ///< operations; the communicator's thread counts
  uint64_t ended = 0;    ///< under the engine's lock
};

/// What the ranks compare before data moves. Travels as bytes: all ranks run the same build.
struct OldCall {
  uint64_t sequence;
  uint64_t count;
  int32_t kind, dtype, op, root;
};

/// How the data of one collective moves: a fixed order of MPI calls, the same on all ranks.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Starts what can be started; true once everything has finished. Does not block.
  virtual bool Advance() = 0;
};

/// One collective on one rank. MPI matches collectives by the order in which they are started on a
/// communicator, so the operations of a group take turns. See mpi_operation.cc for the algorithm.
class MpiOperation : public Operation {
 public:
  MpiOperation(std::shared_ptr<Group> group, const Collective& collective);

  Progress Advance() override;
  std::vector<int> Missing() const override { return {}; }
  bool NeedsPolling() const override { return true; }

 private:
  void StartComparing();
  void CheckCalls() const;

  std::shared_ptr<Group> group_;
  Collective collective_;
  OldCall mine_;
  std::vector<OldCall> calls_;  // by rank
  bool comparing_ = false;
  Request compare_;
  std::unique_ptr<Transfer> transfer_;
};

}  // namespace dtrun::ops::mpi

#endif
