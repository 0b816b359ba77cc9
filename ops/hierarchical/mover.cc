// up, across and down are lanes of their own, on communicators of their own: a chunk that goes down
// waits for no other chunk that goes up. On each lane the parts are started in the order of the
// operations and, within one, of the chunks, so the communicators see the same order on all ranks
// without a word about it.

#include "ops/hierarchical/mover.h"

#include <algorithm>

namespace dtrun::ops::hierarchical {
namespace {

// Chunks of an operation that are under way at once: while one is on the wire, the next ones are
// ready for it and the last ones are handed round.
constexpr uint64_t kWindow = 6;

}  // namespace

Mover::Mover(Group& group, std::unique_ptr<Plan> plan) : group_(group), plan_(std::move(plan)) {
  for (const Step step : {kUp, kAcross, kDown}) {
    if (plan_->flat() && step != kAcross) continue;
    first_place_[step] = LaneOf(step).Take(plan_->chunk_count());
  }
}

bool Mover::Advance() {
  bool advanced = false;
  const uint64_t end = std::min(first_ + kWindow, plan_->chunk_count());
  for (uint64_t next = first_ + under_way_.size(); next < end; ++next) {
    under_way_.push_back({.chunk = plan_->MakeChunk(next)});
    if (plan_->flat()) under_way_.back().step = kAcross;
    advanced = true;
  }
  for (uint64_t i = 0; i < under_way_.size(); ++i) {
    advanced |= AdvanceJourney(under_way_[i], first_ + i);
  }
  while (!under_way_.empty() && under_way_.front().step == kArrived) {
    under_way_.pop_front();
    ++first_;
  }
  return advanced;
}

bool Mover::AdvanceJourney(Journey& journey, uint64_t index) {
  bool advanced = false;
  while (journey.step != kArrived) {
    if (!journey.started) {
      if (!StartStep(journey, index)) break;
      advanced = true;
    }
    const bool ended = std::all_of(
        journey.works.begin(), journey.works.end(), [](const Work& work) { return work.Done(); });
    if (!ended) break;
    const bool last = journey.step == kDown || plan_->flat();
    journey.step = last ? kArrived : static_cast<Step>(journey.step + 1);
    journey.started = false;
    journey.works.clear();
    advanced = true;
  }
  return advanced;
}

bool Mover::StartStep(Journey& journey, uint64_t index) {
  Lane& lane = LaneOf(journey.step);
  if (!lane.IsTurnOf(first_place_[journey.step] + index)) return false;
  for (Collective& part : PartsOf(journey)) {
    journey.works.push_back(CommunicatorOf(journey.step)->Start(std::move(part)));
  }
  lane.Pass();
  journey.started = true;
  return true;
}

Parts Mover::PartsOf(Journey& journey) const {
  switch (journey.step) {
    case kUp: return journey.chunk->Up();
    case kAcross: return journey.chunk->Across();
    case kDown: return journey.chunk->Down();
    case kArrived: break;
  }
  return {};
}

Lane& Mover::LaneOf(Step step) const {
  if (step == kUp) return group_.up_lane;
  if (step == kDown) return group_.down_lane;
  return plan_->flat() ? group_.flat_lane : group_.across_lane;
}

Communicator* Mover::CommunicatorOf(Step step) const {
  if (step == kUp) return group_.local.get();
  if (step == kDown) return group_.down.get();
  return plan_->flat() ? group_.flat.get() : group_.rail.get();
}

void Mover::Abandon() {
  for (Journey& journey : under_way_) {
    for (Work& work : journey.works) work.Abandon();
  }
}

}  // namespace dtrun::ops::hierarchical
