#include "models/metrics/accuracy.h"

#include <dtrun/error.h>

#include <algorithm>

#include "models/text.h"

namespace dtrun::models {
namespace {

bool IsLargest(std::span<const float> outputs, size_t label) {
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (k < label ? !(outputs[k] < outputs[label]) : outputs[k] > outputs[label]) return false;
  }
  return outputs[label] == outputs[label];
}

bool IsAmongLargest(std::span<const float> outputs, size_t label, size_t k) {
  const auto at_least_as_large = static_cast<size_t>(std::count_if(
      outputs.begin(), outputs.end(), [&](float output) { return !(output < outputs[label]); }));
  return at_least_as_large <= k;  // itself included
}

}  // namespace

void SparseCategoricalAccuracy::Update(const MetricInput& input) {
  for (size_t i = 0; i < input.outputs.examples; ++i)
    Add(IsLargest(input.outputs.row(i), input.targets.label(i)) ? 1 : 0, input.weight(i));
}

TopK::TopK(int k, std::string name)
    : k_(static_cast<size_t>(k)),
      name_(name.empty() ? Text("top_", k, "_accuracy") : std::move(name)) {
  if (k < 1)
    throw Error(ErrorCode::kInvalidArgument, Text("TopK: k is ", k, ", expected at least 1"));
}

void TopK::Update(const MetricInput& input) {
  for (size_t i = 0; i < input.outputs.examples; ++i) {
    const bool found = IsAmongLargest(input.outputs.row(i), input.targets.label(i), k_);
    Add(found ? 1 : 0, input.weight(i));
  }
}

}  // namespace dtrun::models
