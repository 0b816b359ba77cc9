#include "ops/adasum_tree.h"

#include <algorithm>

namespace dtrun::ops {
namespace {

// A block of f32 stays in the first-level cache while two are read, and what is told of it (24
// bytes for each pair of groups) is nothing beside it.
constexpr uint64_t kBlockElements = 8192;

// What is left of a vector of which `dot` of `square` lies in the direction of the other.
double Share(double dot, double square) { return square == 0 ? 1 : 1 - dot / (2 * square); }

}  // namespace

std::vector<TensorBlock> CutIntoBlocks(const Counts& tensors) {
  std::vector<TensorBlock> blocks;
  uint64_t first = 0;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    for (uint64_t left = tensors[tensor]; left > 0;) {
      const uint64_t count = std::min(left, kBlockElements);
      blocks.push_back({first, count, tensor});
      first += count;
      left -= count;
    }
  }
  return blocks;
}

std::vector<size_t> DealBlocks(const std::vector<TensorBlock>& blocks, int size) {
  const uint64_t all = blocks.empty() ? 0 : blocks.back().first + blocks.back().count;
  const auto p = static_cast<uint64_t>(size);
  std::vector<size_t> begins;
  for (uint64_t r = 0; r <= p; ++r) {
    const uint64_t target = all / p * r + all % p * r / p;
    const auto begin = std::lower_bound(
        blocks.begin(), blocks.end(), target,
        [](const auto& block, uint64_t to) { return block.first + block.count / 2 < to; });
    begins.push_back(r == p ? blocks.size() : static_cast<size_t>(begin - blocks.begin()));
  }
  return begins;
}

AdasumTree::AdasumTree(int size, size_t tensor_count)
    : size_(size), weights_(tensor_count * Size(), 1.0) {}

void AdasumTree::Combine(
    const std::vector<TensorBlock>& blocks, const std::vector<Products>& products) {
  const auto pair_count = static_cast<size_t>(pairs()), half = static_cast<size_t>(group_);
  for (size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
    const size_t tensor = blocks[begin].tensor;
    while (end < blocks.size() && blocks[end].tensor == tensor) ++end;
    for (size_t pair = 0; pair < pair_count; ++pair) {
      Products sum;
      for (size_t block = begin; block < end; ++block) {
        const Products& part = products[block * pair_count + pair];
        sum.aa += part.aa;
        sum.bb += part.bb;
        sum.ab += part.ab;
      }
      double* const weights = &weights_[tensor * Size() + pair * 2 * half];
      const double a = Share(sum.ab, sum.aa), b = Share(sum.ab, sum.bb);
      for (size_t r = 0; r < half; ++r) {
        weights[r] *= a;
        weights[half + r] *= b;
      }
    }
  }
  group_ *= 2;
}

void AdasumTree::Scale(double factor) {
  for (double& weight : weights_) weight *= factor;
}

}  // namespace dtrun::ops
