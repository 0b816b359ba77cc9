#ifndef DTRUN_OPS_SHM_SHM_OPERATION_H_
#define DTRUN_OPS_SHM_SHM_OPERATION_H_

#include <memory>
#include <string>
#include <vector>

#include "ops/communicator.h"
#include "ops/engine.h"
#include "ops/shm/shm_group.h"

namespace dtrun::ops::shm {

/// One collective of a shm group, on one rank. See shm_operation.cc for the algorithm.
class ShmOperation : public Operation {
 public:
  ShmOperation(std::shared_ptr<ShmGroup> group, const Collective& collective);

  Progress Advance() override;
  std::vector<int> Missing() const override;

 private:
  enum class Phase { kPosting, kArriving, kDirect, kStaged };

  Progress Post();
  Progress AwaitArrivals();
  void CheckFingerprints() const;
  bool AllInOneRegion() const;

  void FinishInline();

  void PlanChunks();
  Progress AdvanceDirect();
  bool ReduceChunks();
  void ReduceChunk(uint64_t chunk);
  void CopyFromPeers();

  Progress AdvanceStaged();
  bool StageRound();
  bool ConsumeRound();
  bool BringsData(int rank) const;

  char* PeerBuffer(int rank) const;
  const Fingerprint& fingerprint(int rank) const {
    return group_->layout().arrival(sequence_, rank).fingerprint;
  }

  std::shared_ptr<ShmGroup> group_;
  Collective collective_;
  uint64_t sequence_;
  uint64_t bytes_;  // of this rank's input
  Location location_;
  Phase phase_ = Phase::kPosting;
  int arrived_ = 0;  // ranks [0, arrived_) have been seen

  // Direct: the elements in chunks, and every rank's share of the chunks.
  uint64_t chunk_elements_ = 0, chunks_ = 0;
  bool copied_ = false;

  // Staged: rounds of this operation, counted from the group's rounds before it.
  uint64_t first_round_ = 0, round_count_ = 0, staged_ = 0, consumed_ = 0;
};

}  // namespace dtrun::ops::shm

#endif
