#include "models/data/sampling.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace dtrun::models {

ShuffleWords::ShuffleWords(uint64_t seed, uint64_t epoch)
    : counter_{0, static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32), RandomDomain(RandomUse::kShuffle, 0)},
      key_(KeyOfSeed(seed)) {}

// The result is the high half of a 64-bit product. Rarely, the product would make some results more
// likely, and is drawn again. D. Lemire, "Fast random integer generation in an interval", 2019.
uint32_t ShuffleWords::Below(uint32_t bound) {
  uint64_t product = uint64_t{Next()} * bound;
  const uint32_t unfair = -bound % bound;  // 2^32 modulo bound
  while (static_cast<uint32_t>(product) < unfair) product = uint64_t{Next()} * bound;
  return static_cast<uint32_t>(product >> 32);
}

uint32_t ShuffleWords::Next() {
  if (used_ == words_.size()) {
    words_ = Philox4x32(counter_, key_);
    ++counter_[0];
    used_ = 0;
  }
  return words_[used_++];
}

// The shuffle of Fisher and Yates, in Durstenfeld's form: position i takes one of the entries that
// are not taken yet.
void WriteEpochOrder(uint64_t seed, uint64_t epoch, std::span<uint32_t> order) {
  std::iota(order.begin(), order.end(), 0);
  ShuffleWords words(seed, epoch);
  for (uint64_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[words.Below(static_cast<uint32_t>(i))]);
}

std::vector<uint32_t> EpochOrder(uint64_t seed, uint64_t epoch, uint64_t count) {
  std::vector<uint32_t> order(count);
  WriteEpochOrder(seed, epoch, order);
  return order;
}

uint64_t BatchesPerEpoch(uint64_t count, uint64_t global_batch) {
  return (count + global_batch - 1) / global_batch;
}

Range GlobalBatch(uint64_t step, uint64_t count, uint64_t global_batch) {
  return {std::min(step * global_batch, count), std::min((step + 1) * global_batch, count)};
}

Range PartOf(const Range& whole, int rank, int size) {
  const auto r = static_cast<uint64_t>(rank), p = static_cast<uint64_t>(size);
  return {whole.begin + whole.size() * r / p, whole.begin + whole.size() * (r + 1) / p};
}

}  // namespace dtrun::models
