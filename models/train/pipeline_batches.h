#ifndef DTRUN_MODELS_TRAIN_PIPELINE_BATCHES_H_
#define DTRUN_MODELS_TRAIN_PIPELINE_BATCHES_H_

#include <memory>

#include "models/data/distribute.h"
#include "models/data/pipeline_dataset.h"
#include "models/train/strategy_batches.h"

namespace dtrun::models {

/// A distributed pipeline as a loop's batches. Inputs go from the data set's memory straight to
/// where the network reads them.
class PipelineBatches : public StrategyBatches {
 public:
  explicit PipelineBatches(const DistributedPipeline& pipeline)
      : StrategyBatches(std::make_unique<DistributedPipelineDataset>(pipeline)) {}
};

}  // namespace dtrun::models

#endif
