#include "models/train/batch.h"

#include <dtrun/error.h>

#include <chrono>

#include "models/message_text.h"

namespace dtrun::models {

bool StrategyBatches::Next(ReplicaBatch& batch) {
  const auto start = std::chrono::steady_clock::now();
  const bool found = data_->Next(batch_);
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!found) return false;
  batch = {};
  batch.examples = batch_.examples;
  batch.first_position = static_cast<uint32_t>(batch_.first_position);
  batch.global_batch = batch_.global_batch;
  if (batch_.example_numbers != nullptr)
    batch.example_numbers = {batch_.example_numbers, batch.examples};
  const Buffer& targets = batch_.targets;
  if (targets.dtype == DType::kI32) {
    batch.targets.labels = {static_cast<const int32_t*>(targets.data), targets.count};
  } else if (targets.dtype == DType::kF32) {
    batch.targets.values = {static_cast<const float*>(targets.data), targets.count};
  } else {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("the targets of a batch are ", NameOf(targets.dtype), ", expected i32 or f32"));
  }
  const Buffer& weights = batch_.sample_weights;
  if (weights.data != nullptr)
    batch.sample_weights = {static_cast<const float*>(weights.data), weights.count};
  batch.write_inputs = [this](size_t first, size_t count, float* inputs) {
    batch_.write_inputs(first, count, inputs);
  };
  return true;
}

}  // namespace dtrun::models
