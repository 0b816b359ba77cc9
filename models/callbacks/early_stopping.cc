#include "models/callbacks/early_stopping.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "models/text.h"

namespace dtrun::models {
namespace {

void Append(const Buffer& values, std::vector<float>& copy) {
  const auto* value = static_cast<const float*>(values.data);
  copy.insert(copy.end(), value, value + values.count);
}

// The parameters, then the network's buffers.
std::vector<float> Copy(Sequential& model) {
  std::vector<float> copy;
  for (const Parameter& parameter : model.parameters()) Append(parameter.value, copy);
  for (const NamedBuffer& buffer : model.buffers()) Append(buffer.buffer, copy);
  return copy;
}

void CopyBack(const std::vector<float>& copy, Replica& replica) {
  std::vector<NamedBuffer> all = replica.distributed_optimizer().BorrowValues();
  const std::vector<NamedBuffer>& buffers = replica.model().buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  const float* next = copy.data();
  for (const NamedBuffer& values : all) {
    std::memcpy(values.buffer.data, next, values.buffer.bytes());
    next += values.buffer.count;
  }
  replica.distributed_optimizer().ReturnValues();
  replica.ParametersChanged();
}

}  // namespace

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)),
      monitor_(options_.monitor, options_.mode, options_.min_delta),
      best_(monitor_.worst()) {}

void EarlyStopping::OnTrainBegin(Run&) {
  best_ = monitor_.worst();
  best_epoch_ = waited_ = 0;
  best_weights_.clear();
}

void EarlyStopping::OnEpochEnd(Run& run, Logs& logs) {
  const double value = monitor_.ValueIn(logs);
  const uint64_t epoch = run.position.epoch - 1;
  if (epoch < options_.start_from_epoch) return;
  if (monitor_.IsBetter(value, best_)) {
    best_ = value;
    best_epoch_ = epoch;
    waited_ = 0;
    if (options_.restore_best_weights) best_weights_ = Copy(run.model());
    return;
  }
  if (++waited_ < std::max<uint64_t>(options_.patience, 1)) return;
  run.StopTraining();
  if (options_.print && run.is_rank_0()) {
    options_.print(Text(
        "EarlyStopping: ", monitor_.name(), " has not improved for ", waited_,
        waited_ == 1 ? " epoch" : " epochs", "; best was ", best_, " in epoch ", best_epoch_ + 1));
  }
}

void EarlyStopping::OnTrainEnd(Run& run, const Logs&) {
  if (best_weights_.empty()) return;
  CopyBack(best_weights_, run.replica());
}

}  // namespace dtrun::models
