#include "models/data/pipeline_dataset.h"

#include <span>

namespace dtrun::models {
namespace {

Sharding ShardingOf(InputSplit split) {
  switch (split) {
    case InputSplit::kAuto: return Sharding::kAuto;
    case InputSplit::kFile: return Sharding::kFile;
    case InputSplit::kData: return Sharding::kData;
    case InputSplit::kOff: return Sharding::kOff;
  }
  return Sharding::kAuto;
}

}  // namespace

DistributedPipelineDataset::DistributedPipelineDataset(const DistributedPipeline& pipeline)
    : batches_(pipeline.batches() == kInfinite ? 0 : pipeline.batches()),
      largest_(pipeline.largest_local_batch()),
      iterator_(pipeline.Begin()) {}

// An epoch that follows the one before needs no Seek: batches made ahead are for it.
void DistributedPipelineDataset::StartEpoch(uint64_t epoch, uint64_t first_batch) {
  const Position& at = iterator_.position();
  if (batches_ > 0 && at.batch == batches_ && at.epoch + 1 == epoch) iterator_.Next();
  const Position wanted{epoch, first_batch};
  if (!(iterator_.position() == wanted)) iterator_.Seek(wanted);
}

bool DistributedPipelineDataset::Next(DistributedBatch& batch) {
  const Batch* next = iterator_.Next();
  if (next == nullptr) return false;
  batch = {};
  batch.examples = next->size();
  batch.first_position = next->first_position();
  batch.global_batch = next->global_size();
  const std::span<const int32_t> labels = next->labels();
  batch.targets = Buffer(const_cast<int32_t*>(labels.data()), labels.size(), DType::kI32);
  batch.write_inputs = [next](uint64_t first, uint64_t count, float* inputs) {
    next->CopyInputs(first, count, inputs);
  };
  return true;
}

std::unique_ptr<DistributedDataset> PipelineDataset::Distribute(
    Communicator& replicas, InputSplit split) const {
  return std::make_unique<DistributedPipelineDataset>(DistributedPipeline(
      replicas, pipeline_, {.sharding = ShardingOf(split), .compute_threads = compute_threads_}));
}

std::unique_ptr<DistributedDataset> PipelineDataset::DistributePerReplica(
    Communicator& replicas) const {
  return std::make_unique<DistributedPipelineDataset>(DistributedPipeline(
      replicas, [this](const models::InputContext&) { return pipeline_; },
      {.compute_threads = compute_threads_}));
}

}  // namespace dtrun::models
