#include "models/train/gradient_tree.h"

#include <dtrun/error.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "models/layers/cpu_kernels.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

constexpr uint64_t kLargestChunk = 128;
constexpr uint64_t kCachePerExample = 64 << 10, kMiddleMicroBatch = 16;

uint64_t DivideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

}  // namespace

// The limits suit network C. An example's activations take 230 kB. Each pass of the dense layers
// reads 14 MB of kernels and gradients from memory. The table is for one training step of 1,024
// images on one thread of a Zen 5 core (second-level cache of 1 MiB). It has microseconds per image
// for micro-batch x micro-batches per chunk:
//   AVX-512  16x8 332, 8x16 336, 32x4 347, 32x1 353; oneDNN's primitives alone 312
//   AVX2     16x8 716, 8x16 710, 32x4 744
// The best sizes for 512 KiB and 2 MiB are scaled from these figures; they are not measured.
uint64_t LargestMicroBatch(uint64_t cache_bytes) {
  if (cache_bytes == 0) return kMiddleMicroBatch;
  return std::clamp(
      std::bit_floor(cache_bytes / kCachePerExample), kMiddleMicroBatch / 2, 2 * kMiddleMicroBatch);
}

uint64_t SecondLevelCacheBytes() {
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

ChunkPlan PlanChunks(uint64_t examples, uint64_t cache_bytes) {
  const uint64_t n = std::max<uint64_t>(examples, 1);
  const uint64_t chunk = DivideUp(n, DivideUp(n, kLargestChunk));
  const uint64_t micro_batches = DivideUp(chunk, LargestMicroBatch(cache_bytes));
  return {static_cast<int>(DivideUp(chunk, micro_batches)), static_cast<int>(micro_batches)};
}

namespace {

bool IsPowerOfTwo(int n) { return n > 0 && std::has_single_bit(static_cast<unsigned>(n)); }

// Returns true if the ranks of each host are consecutive. Collective.
bool HostsAreRuns(Context& job) {
  uint32_t apart = job.rank() != job.cross_rank() * job.local_size() + job.local_rank();
  job.world().AllReduce(Buffer(&apart, 1), ReduceOp::kMax);
  return apart == 0;
}

}  // namespace

// The sums work like a binary counter. The gradients of leaf n are written to level popcount(n).
// Then each trailing one in n adds this level to the level below it. So level 0 holds the largest
// finished subtree, level 1 the next one, and so on. The last leaf is written to the result, and
// all levels are added to the result.
//
//   leaf 0 -> level 0     leaf 1 -> level 1, added to 0     leaf 2 -> level 1
//   leaf 3 -> the result, to which level 1 is added, then level 0
GradientTree::GradientTree(std::vector<Parameter>& parameters, int leaves, Context& job)
    : parameters_(parameters), leaves_(leaves) {
  std::string obstacle = Obstacle(leaves, job.size(), job.hosts());
  if (obstacle.empty() && !HostsAreRuns(job))
    obstacle = "a deterministic sum on hosts whose ranks do not follow each other";
  if (!obstacle.empty()) throw Error(ErrorCode::kInvalidArgument, obstacle);
  leaf_count_ = leaves / job.size();
  first_leaf_ = leaf_count_ * job.rank();
  size_t count = 0;
  for (const Parameter& parameter : parameters) {
    offsets_.push_back(count);
    count += parameter.gradient.count;
  }
  for (int of_level = 2; of_level <= leaf_count_; of_level *= 2) sums_.emplace_back(count);
}

std::string GradientTree::Obstacle(int leaves, int ranks, const std::vector<Host>& hosts) {
  if (!IsPowerOfTwo(leaves))
    return Text("a deterministic sum of ", leaves, " parts: expected a power of two");
  if (!IsPowerOfTwo(ranks) || ranks > leaves) {
    return Text(
        "a deterministic sum of ", leaves, " parts on ", ranks,
        " ranks: expected a power of two, at most ", leaves);
  }
  for (const Host& host : hosts) {
    if (host.slots == hosts[0].slots) continue;
    return Text(
        "a deterministic sum on hosts with ", hosts[0].slots, " (", hosts[0].name, ") and ",
        host.slots, " (", host.name, ") ranks: expected as many on each");
  }
  return "";
}

uint64_t GradientTree::LargestLeaf(uint64_t global_batch, int leaves) {
  const auto parts = static_cast<uint64_t>(leaves);
  return (global_batch + parts - 1) / parts;
}

Range GradientTree::PositionsOf(int leaf, uint64_t global_batch) const {
  return PartOf({0, global_batch}, leaf, leaves_);
}

void GradientTree::BeginLeaf(int n) {
  leaf_ = n;
  if (is_last(n)) return;
  const FloatArray& sum = sums_[static_cast<size_t>(std::popcount(static_cast<unsigned>(n)))];
  results_.clear();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    results_.push_back(parameters_[i].gradient.data);
    parameters_[i].gradient.data = sum.data() + offsets_[i];
  }
}

void GradientTree::EndLeaf() {
  AbandonLeaf();
  if (is_last(leaf_)) return;
  const auto n = static_cast<unsigned>(leaf_);
  auto level = static_cast<size_t>(std::popcount(n));
  for (int additions = std::countr_one(n); additions > 0; --additions, --level)
    Add(sums_[level].data(), sums_[level].count(), sums_[level - 1].data());
}

void GradientTree::AddEarlierLeaves(size_t i) {
  const Buffer& gradient = parameters_[i].gradient;
  for (size_t level = sums_.size(); level-- > 0;) {
    Add(sums_[level].data() + offsets_[i], gradient.count, static_cast<float*>(gradient.data));
  }
}

void GradientTree::AbandonLeaf() {
  for (size_t i = 0; i < results_.size(); ++i) parameters_[i].gradient.data = results_[i];
  results_.clear();
}

double SumInTree(std::span<const double> values) {
  if (values.size() == 1) return values[0];
  const size_t half = values.size() / 2;
  return SumInTree(values.first(half)) + SumInTree(values.subspan(half));
}

}  // namespace dtrun::models
