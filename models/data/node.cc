#include "models/data/node.h"

#include <algorithm>

#include "models/text.h"

namespace dtrun::models {
namespace {

uint64_t CountOfFiles(const ExampleSource& source, const FileShare& share) {
  uint64_t count = 0;
  for (auto file = static_cast<uint64_t>(share.rank); file < source.files();
       file += static_cast<uint64_t>(share.ranks))
    count += source.file_begins()[file + 1] - source.file_begins()[file];
  return count;
}

// The input's count, as one step changes it.
struct Counter {
  uint64_t count;

  uint64_t operator()(const TakeStep& take) const { return std::min(count, take.count); }
  uint64_t operator()(const SkipStep& skip) const { return SkippedCount(count, skip.count); }
  uint64_t operator()(const ShardStep& shard) const {
    if (count == kInfinite || count <= shard.index) return count == kInfinite ? kInfinite : 0;
    return (count - shard.index - 1) / shard.shards + 1;
  }
  uint64_t operator()(const RepeatStep& repeat) const { return RepeatedCount(count, repeat.times); }
  template <typename Other>
  uint64_t operator()(const Other&) const {
    return count;
  }
};

}  // namespace

const ExampleSource& SourceOf(const Node& node) { return *Find<SourceStep>(&node)->source; }

bool ComputesSinceCache(const Node& node) {
  for (const Node* n = &node; n != nullptr && n->as<CacheStep>() == nullptr; n = n->input.get()) {
    if (n->as<MapStep>() != nullptr) return true;
  }
  return false;
}

// An order matters where only some of the examples follow.
std::string ExamplesOf(const Node& node) {
  std::string text;
  bool picked = false;
  for (const Node* n = &node; n != nullptr; n = n->input.get()) {
    const auto add = [&](const std::string& step) { text = step + text; };
    if (const auto* source = n->as<SourceStep>()) add(source->source->identity());
    if (const auto* take = n->as<TakeStep>()) add(Text(", take ", take->count));
    if (const auto* skip = n->as<SkipStep>()) add(Text(", skip ", skip->count));
    if (const auto* shard = n->as<ShardStep>())
      add(Text(", shard ", shard->index, " of ", shard->shards));
    const auto* shuffle = n->as<ShuffleStep>();
    if (shuffle != nullptr && picked)
      add(Text(", shuffle ", shuffle->options.buffer, " ", shuffle->options.seed));
    picked |= n->as<TakeStep>() || n->as<SkipStep>() || n->as<ShardStep>();
  }
  return text;
}

uint64_t SkippedCount(uint64_t count, uint64_t skipped) {
  return count == kInfinite ? kInfinite : count - std::min(count, skipped);
}

uint64_t RepeatedCount(uint64_t count, uint64_t times) {
  if (count == 0 || times == 0) return 0;
  return count > kInfinite / times ? kInfinite : count * times;
}

uint64_t CountOf(const Node& node, const FileShare& share) {
  if (const auto* source = node.as<SourceStep>()) return CountOfFiles(*source->source, share);
  return std::visit(Counter{CountOf(*node.input, share)}, node.step);
}

}  // namespace dtrun::models
