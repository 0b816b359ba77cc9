#include "models/loops/loops.h"
#include "models/train/steps.h"

namespace dtrun::models {

double TrainEpoch(
    Replica& replica, BatchSource& data, uint64_t epoch, const Loss& loss,
    std::span<Metric* const> metrics) {
  double sum = 0;
  data.StartEpoch(epoch);
  for (const ReplicaBatch& batch : RestOf(data)) sum += TrainStep(replica, batch, loss, metrics);
  return sum;
}

}  // namespace dtrun::models
