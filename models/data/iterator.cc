#include "models/data/iterator.h"

#include <chrono>
#include <utility>

#include "models/data/iterator_state.h"

namespace dtrun::models {

Iterator::State::State(const ReadPlan& plan, const Position& start) : position_(start) {
  auto maker = std::make_unique<BatchMaker>(std::make_shared<const ReadPlan>(plan), start);
  const auto* prefetch = Find<PrefetchStep>(&plan.pipeline.node());
  if (prefetch == nullptr) {
    maker_ = std::move(maker);
  } else {
    prefetcher_ =
        std::make_unique<Prefetcher>(std::move(maker), prefetch->batches, plan.compute_threads);
  }
}

const Batch* Iterator::State::Next() {
  const auto start = std::chrono::steady_clock::now();
  if (failed_) Seek(position_);
  failed_ = true;
  const Batch* batch = prefetcher_             ? prefetcher_->Next()
                       : maker_->Make(&batch_) ? &batch_
                                               : nullptr;
  failed_ = false;
  position_ = batch != nullptr ? Position{position_.epoch, position_.batch + 1}
                               : Position{position_.epoch + 1, 0};
  wait_ += std::chrono::steady_clock::now() - start;
  return batch;
}

void Iterator::State::Seek(const Position& position) {
  position_ = position;
  failed_ = false;
  prefetcher_ ? prefetcher_->Seek(position) : maker_->Seek(position);
}

Iterator::Iterator(const Pipeline& pipeline, const Position& start)
    : state_(std::make_unique<State>(PlanAlone(pipeline), start)) {}
Iterator::Iterator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Iterator::Iterator(Iterator&&) noexcept = default;
Iterator& Iterator::operator=(Iterator&&) noexcept = default;
Iterator::~Iterator() = default;

const Batch* Iterator::Next() { return state_->Next(); }
void Iterator::Seek(const Position& position) { state_->Seek(position); }
const Position& Iterator::position() const { return state_->position(); }
double Iterator::wait_seconds() const { return state_->wait_seconds(); }

}  // namespace dtrun::models
