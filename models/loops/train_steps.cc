#include "models/loops/loops.h"
#include "models/train/steps.h"

namespace dtrun::models {

double TrainSteps(
    Replica& replica, BatchSource& data, uint64_t steps, const Loss& loss,
    std::span<Metric* const> metrics, uint64_t* epoch) {
  double sum = 0;
  ReplicaBatch batch;
  for (uint64_t step = 0; step < steps; ++step) {
    if (!data.Next(batch)) {
      data.StartEpoch(++*epoch);
      if (!data.Next(batch)) return sum;  // no data at all
    }
    sum += TrainStep(replica, batch, loss, metrics);
  }
  return sum;
}

}  // namespace dtrun::models
