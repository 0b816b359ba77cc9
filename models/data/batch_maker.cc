#include "models/data/batch_maker.h"

#include <dtrun/error.h>

#include <algorithm>
#include <utility>

#include "models/data/sampling.h"
#include "models/text.h"

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

// An exception leaves `started_` false: the stream has gone on, the position has not.
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
  if (!refs_stream_->Next(&refs_)) refs_.clear();  // this rank's stream is shorter than others'
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
    const ExampleRow row = evaluator_.Row(refs_[first_ref_ + i]);
    batch->rows_[i] = {row.bytes, row.floats};
    batch->labels_[i] = row.label;
  }
  batch->has_floats_ = false;
}

}  // namespace dtrun::models
