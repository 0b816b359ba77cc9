#include "models/data/evaluator.h"

#include <algorithm>

#include "models/data/stream.h"
#include "models/data/to_floats.h"

namespace dtrun::models {

Evaluator::Evaluator(const Node& node, const FileShare& share)
    : source_(SourceOf(node)), share_(share) {
  stages_.emplace_back();
  for (const Node* n = &node; n != nullptr; n = n->input.get()) {
    Stage& stage = stages_.front();
    if (n->as<MapStep>() != nullptr) {
      stage.maps.insert(stage.maps.begin(), n);
      computes_ = true;
    }
    if (n->as<CacheStep>() != nullptr) {
      stage.table = CacheTableOf(*n, share);
      stages_.emplace(stages_.begin());
    }
  }
  for (Stage& stage : stages_) {
    size_t floats = 0;
    for (const Node* map : stage.maps)
      floats = std::max({floats, map->shape.count(), map->input->shape.count()});
    for (std::vector<float>& scratch : stage.scratch) scratch.resize(floats);
  }
}

void Evaluator::LoadFiles() const {
  for (auto file = static_cast<uint64_t>(share_.rank); file < source_.files();
       file += static_cast<uint64_t>(share_.ranks))
    source_.Load(file);
}

ExampleRow Evaluator::Row(const ExampleRef& ref) const {
  ExampleRef at = ref;
  for (size_t i = stages_.size(); i-- > 1;) at = stages_[i].table->ref(at.example);
  return source_.Row(at.example);
}

void Evaluator::Evaluate(const ExampleRef& ref, float* values, int32_t* label) {
  RunStage(stages_.size() - 1, ref, values, label);
}

// From one scratch array into the other, and the last function into `values`.
void Evaluator::RunStage(size_t i, const ExampleRef& ref, float* values, int32_t* label) {
  Stage& stage = stages_[i];
  if (stage.maps.empty()) return ReadInput(i, ref, values, label);
  float *from = stage.scratch[0].data(), *to = stage.scratch[1].data();
  ReadInput(i, ref, from, label);
  for (const Node* map : stage.maps) {
    if (map == stage.maps.back()) to = values;
    map->as<MapStep>()->function({from, to, map->input->shape, label, ref.example, ref.epoch});
    std::swap(from, to);
  }
}

void Evaluator::ReadInput(size_t i, const ExampleRef& ref, float* values, int32_t* label) {
  CacheTable* table = stages_[i].table.get();
  if (table == nullptr) return ReadSource(ref, values, label);
  if (table->keeps_values() && table->Find(ref.example, values, label)) return;
  RunStage(i - 1, table->ref(ref.example), values, label);
  if (table->keeps_values()) table->Store(ref.example, values, *label);
}

void Evaluator::ReadSource(const ExampleRef& ref, float* values, int32_t* label) const {
  const ExampleRow row = source_.Row(ref.example);
  const size_t count = source_.shape().count();
  if (row.bytes != nullptr) {
    BytesToFloats(row.bytes, count, values);
  } else {
    std::copy_n(row.floats, count, values);
  }
  *label = row.label;
}

}  // namespace dtrun::models
