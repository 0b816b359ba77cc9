#include "models/callbacks/all_ranks.h"

#include <dtrun/metrics.h>
#include <dtrun/state_broadcast.h>

namespace dtrun::models {

void BroadcastVariables::OnTrainBegin(Run& run) {
  BroadcastParameters(run.world(), run.model().parameters(), root_);
  BroadcastOptimizerState(run.world(), run.optimizer(), root_);
  run.replica().ParametersChanged();
}

void MetricAverage::OnEpochEnd(Run& run, Logs& logs) { logs = AverageMetrics(run.world(), logs); }

}  // namespace dtrun::models
