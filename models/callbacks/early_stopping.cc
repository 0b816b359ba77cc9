#include "models/callbacks/early_stopping.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "models/text.h"

namespace dtrun::models {
namespace {

// Of the parameters, then the network's buffers.
std::vector<Buffer> ValuesOf(Sequential& model) {
  std::vector<Buffer> values;
  for (const Parameter& parameter : model.parameters()) values.push_back(parameter.value);
  for (const NamedBuffer& buffer : model.buffers()) values.push_back(buffer.buffer);
  return values;
}

std::vector<float> Copy(Sequential& model) {
  std::vector<float> copy;
  for (const Buffer& values : ValuesOf(model)) {
    const auto* value = static_cast<const float*>(values.data);
    copy.insert(copy.end(), value, value + values.count);
  }
  return copy;
}

void CopyBack(const std::vector<float>& copy, Sequential& model) {
  const float* next = copy.data();
  for (const Buffer& values : ValuesOf(model)) {
    std::memcpy(values.data, next, values.bytes());
    next += values.count;
  }
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
  CopyBack(best_weights_, run.model());
  run.replica().ParametersChanged();
}

}  // namespace dtrun::models
