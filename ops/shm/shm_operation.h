#ifndef DTRUN_OPS_SHM_SHM_OPERATION_H_
#define DTRUN_OPS_SHM_SHM_OPERATION_H_

#include <memory>
#include <vector>

#include "ops/engine.h"
#include "ops/shm/meeting.h"

namespace dtrun::ops::shm {

/// One collective of a shm group, on one rank. See shm_operation.cc for the algorithm.
class ShmOperation : public Operation {
 public:
  ShmOperation(const std::shared_ptr<ShmGroup>& group, Collective collective);

  Progress Advance() override;
  std::vector<int> Missing() const override { return meeting_.Missing(); }

 private:
  enum class Phase { kPosting, kArriving, kMoving };

  Progress Post();
  Progress AwaitArrivals();
  void CheckCalls() const;
  void FinishInline();
  Progress End(Progress progress);

  Meeting meeting_;
  Phase phase_ = Phase::kPosting;
  std::unique_ptr<Transfer> transfer_;
};

}  // namespace dtrun::ops::shm

#endif
