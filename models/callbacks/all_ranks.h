#ifndef DTRUN_MODELS_CALLBACKS_ALL_RANKS_H_
#define DTRUN_MODELS_CALLBACKS_ALL_RANKS_H_

#include <string>

#include "models/callbacks/callback.h"

namespace dtrun::models {

/// Before training: makes parameters and optimizer state of all ranks those of rank `root`. A
/// Replica has done so when it was made; this is for what has been changed since, such as weights
/// that one rank has read from a file.
class BroadcastVariables : public Callback {
 public:
  explicit BroadcastVariables(int root = 0) : root_(root) {}
  std::string name() const override { return "BroadcastVariables"; }
  void OnTrainBegin(Run& run) override;

 private:
  int root_;
};

/// At the end of an epoch: replaces every number in its logs by the mean over all ranks. The loss
/// and the metrics are those of all ranks already; this is for what callbacks before it have added
/// from their own rank.
class MetricAverage : public Callback {
 public:
  std::string name() const override { return "MetricAverage"; }
  void OnEpochEnd(Run& run, Logs& logs) override;
};

}  // namespace dtrun::models

#endif
