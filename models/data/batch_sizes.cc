#include "models/data/batch_sizes.h"

#include <algorithm>

namespace dtrun::models {

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

// The way back from a batch's number behind the last step to the one behind Batch.
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

}  // namespace dtrun::models
