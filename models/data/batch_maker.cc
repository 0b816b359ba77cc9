#include "models/data/batch_maker.h"

#include <dtrun/error.h>

#include <algorithm>
#include <utility>

#include "models/data/dataset.h"
#include "models/data/sampling.h"
#include "models/message_text.h"

// BatchMaker reads the example numbers of the next batch from a Stream and selects this rank's
// part. Then BatchMaker fills the batch: with rows of the source if the pipeline has no Map, else
// with the values that an Evaluator computes. An Evaluator runs the functions in stages. Each Cache
// ends a stage. The stages before a Cache run only for values that are missing in its table.

namespace dtrun::models {

void ExpectBatches(const Pipeline& pipeline, uint64_t batches) {
  if (batches > 0) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("pipeline (", pipeline.description(), "): found no batch in an epoch, expected one"));
}

ReadPlan PlanAlone(const Pipeline& pipeline) {
  if (pipeline.global_batch() == 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("pipeline (", pipeline.description(), "): found no Batch, expected one"));
  }
  ReadPlan plan{pipeline};
  plan.batches = pipeline.batches();
  ExpectBatches(pipeline, plan.batches);
  return plan;
}

BatchMaker::BatchMaker(std::shared_ptr<const ReadPlan> plan, const Position& start)
    : plan_(std::move(plan)),
      evaluator_(plan_->pipeline.node(), plan_->files),
      refs_stream_(OpenBatches(
          plan_->pipeline.node(), plan_->files,
          plan_->own_batch > 0 ? plan_->own_batch : plan_->pipeline.global_batch())),
      position_(start) {}

void BatchMaker::Seek(const Position& position) {
  position_ = position;
  started_ = false;
}

// After an exception `started_` is false, because the stream has moved on but the position has not.
bool BatchMaker::Make(Batch* batch) {
  if (position_.batch >= plan_->batches) {
    Seek({position_.epoch + 1, 0});
    return false;
  }
  if (!started_) {
    evaluator_.LoadFiles();
    refs_stream_->Start(position_.epoch);
    refs_stream_->Skip(position_.batch);
  }
  started_ = false;
  if (!refs_stream_->Next(&refs_)) refs_.clear();  // other ranks' streams are longer
  Place(batch);
  Fill(batch);
  started_ = true;
  ++position_.batch;
  return true;
}

void BatchMaker::Place(Batch* batch) {
  batch->position_ = position_;
  batch->shape_ = plan_->pipeline.shape();
  if (plan_->own_batch > 0) {
    PlaceOwn(batch);
    first_ref_ = 0;
  } else {
    PlacePart(batch);
  }
}

void BatchMaker::PlacePart(Batch* batch) {
  const Range part = PartOf({0, refs_.size()}, plan_->rank, plan_->ranks);
  batch->size_ = part.size();
  batch->global_size_ = refs_.size();
  batch->first_position_ = part.begin;
  first_ref_ = part.begin;
}

void BatchMaker::PlaceOwn(Batch* batch) const {
  batch->size_ = refs_.size();
  batch->global_size_ = 0;
  for (size_t rank = 0; rank < plan_->sizes.size(); ++rank) {
    if (rank == static_cast<size_t>(plan_->rank)) batch->first_position_ = batch->global_size_;
    batch->global_size_ += plan_->sizes[rank].size(position_.batch);
  }
}

void BatchMaker::Fill(Batch* batch) {
  batch->labels_.resize(batch->size_);
  batch->numbers_.resize(batch->size_);
  for (size_t i = 0; i < batch->size_; ++i)
    batch->numbers_[i] = evaluator_.NumberOf(refs_[first_ref_ + i]);
  batch->pipeline_ = plan_->pipeline.shared_node();
  if (!evaluator_.computes()) return FillWithRows(batch);
  const size_t stride = batch->shape_.count();
  batch->floats_.resize(batch->size_ * stride);
  for (size_t i = 0; i < batch->size_; ++i) {
    evaluator_.Evaluate(
        refs_[first_ref_ + i], batch->floats_.data() + i * stride, &batch->labels_[i]);
  }
  batch->has_floats_ = true;
}

void BatchMaker::FillWithRows(Batch* batch) const {
  batch->rows_.resize(batch->size_);
  for (size_t i = 0; i < batch->size_; ++i) {
    const ExampleRow row = evaluator_.Row(batch->numbers_[i]);
    batch->rows_[i] = {row.bytes, row.floats};
    batch->labels_[i] = row.label;
  }
  batch->has_floats_ = false;
}

BatchSizes::BatchSizes(const Node& node, const FileShare& share, uint64_t batch) {
  const Node* n = &node;
  std::vector<uint64_t> backwards;
  for (; n->as<BatchStep>() == nullptr; n = n->input.get()) {
    const auto add = [&](Kind kind, uint64_t number) {
      backwards.insert(backwards.end(), {number, static_cast<uint64_t>(kind)});
    };
    if (const auto* take = n->as<TakeStep>()) add(Kind::kTake, take->count);
    if (const auto* skip = n->as<SkipStep>()) add(Kind::kSkip, skip->count);
    if (const auto* repeat = n->as<RepeatStep>()) add(Kind::kRepeat, repeat->times);
  }
  const bool drops = n->as<BatchStep>()->remainder == Remainder::kDrop;
  numbers_ = {CountOf(*n->input, share), batch, drops};
  numbers_.insert(numbers_.end(), backwards.rbegin(), backwards.rend());
}

BatchSizes::BatchSizes(const std::vector<uint64_t>& packed) : numbers_(packed) {}

uint64_t BatchSizes::batches() const { return BatchesBefore(numbers_.size()); }

uint64_t BatchSizes::BatchesBefore(size_t step) const {
  const uint64_t examples = numbers_[kExamples], batch = numbers_[kBatch];
  uint64_t count = examples == kInfinite
                       ? kInfinite
                       : examples / batch + (numbers_[kDrops] == 0 && examples % batch > 0);
  for (size_t i = kFirstStep; i < step; i += 2) {
    const uint64_t number = numbers_[i + 1];
    switch (static_cast<Kind>(numbers_[i])) {
      case Kind::kTake: count = std::min(count, number); break;
      case Kind::kSkip: count = SkippedCount(count, number); break;
      case Kind::kRepeat: count = RepeatedCount(count, number); break;
    }
  }
  return count;
}

// Traces a batch number back from the last step to the output of Batch.
uint64_t BatchSizes::size(uint64_t batch) const {
  if (batch >= batches()) return 0;
  for (size_t i = numbers_.size(); i > kFirstStep; i -= 2) {
    const uint64_t number = numbers_[i - 1];
    switch (static_cast<Kind>(numbers_[i - 2])) {
      case Kind::kTake: break;
      case Kind::kSkip: batch += number; break;
      case Kind::kRepeat: batch %= BatchesBefore(i - 2); break;
    }
  }
  const uint64_t examples = numbers_[kExamples], full = numbers_[kBatch];
  return examples == kInfinite ? full : std::min(full, examples - batch * full);
}

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

uint64_t Evaluator::NumberOf(const ExampleRef& ref) const {
  ExampleRef at = ref;
  for (size_t i = stages_.size(); i-- > 1;) at = stages_[i].table->ref(at.example);
  return at.example;
}

void Evaluator::Evaluate(const ExampleRef& ref, float* values, int32_t* label) {
  RunStage(stages_.size() - 1, ref, values, label);
}

// Each function reads one scratch array and writes the other. The last one writes to `values`.
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
