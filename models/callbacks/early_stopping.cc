#include "models/callbacks/early_stopping.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "models/text.h"

namespace dtrun::models {
namespace {

std::vector<float> Copy(const std::vector<Parameter>& parameters) {
  std::vector<float> values;
  for (const Parameter& parameter : parameters) {
    const auto* value = static_cast<const float*>(parameter.value.data);
    values.insert(values.end(), value, value + parameter.value.count);
  }
  return values;
}

void CopyBack(const std::vector<float>& values, std::vector<Parameter>& parameters) {
  const float* next = values.data();
  for (Parameter& parameter : parameters) {
    std::memcpy(parameter.value.data, next, parameter.value.bytes());
    next += parameter.value.count;
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
    if (options_.restore_best_weights) best_weights_ = Copy(run.model().parameters());
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
  CopyBack(best_weights_, run.model().parameters());
  run.replica().ParametersChanged();
}

}  // namespace dtrun::models
