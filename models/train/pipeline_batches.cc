#include "models/train/pipeline_batches.h"

namespace dtrun::models {

// An epoch that follows the one before needs no Seek: batches made ahead are for it.
void PipelineBatches::StartEpoch(uint64_t epoch, uint64_t first_step) {
  const Position& at = iterator_.position();
  if (steps_ > 0 && at.batch == steps_ && at.epoch + 1 == epoch) iterator_.Next();
  const Position wanted{epoch, first_step};
  if (!(iterator_.position() == wanted)) iterator_.Seek(wanted);
}

bool PipelineBatches::Next(ReplicaBatch& batch) {
  const Batch* next = iterator_.Next();
  if (next == nullptr) return false;
  batch = {};
  batch.examples = next->size();
  batch.first_position = static_cast<uint32_t>(next->first_position());
  batch.global_batch = next->global_size();
  batch.targets.labels = next->labels();
  batch.write_inputs = [next](size_t first, size_t count, float* inputs) {
    next->CopyInputs(first, count, inputs);
  };
  return true;
}

}  // namespace dtrun::models
