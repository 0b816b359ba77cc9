#include "models/train/gathered_outputs.h"

#include <dtrun/objects.h>

namespace dtrun::models {
namespace {

// Rank by rank to batch by batch.
std::vector<float> InOrderOfData(
    const std::vector<float>& by_rank, const std::vector<std::vector<uint64_t>>& counts) {
  std::vector<size_t> next(counts.size());
  for (size_t rank = 1; rank < counts.size(); ++rank) {
    next[rank] = next[rank - 1];
    for (const uint64_t count : counts[rank - 1]) next[rank] += count;
  }
  std::vector<float> ordered;
  ordered.reserve(by_rank.size());
  for (size_t batch = 0; batch < counts[0].size(); ++batch) {
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      const auto begin = by_rank.begin() + static_cast<ptrdiff_t>(next[rank]);
      ordered.insert(ordered.end(), begin, begin + static_cast<ptrdiff_t>(counts[rank][batch]));
      next[rank] += counts[rank][batch];
    }
  }
  return ordered;
}

}  // namespace

std::vector<float> Gather(Communicator& world, OutputShares mine, bool on_all_ranks) {
  const std::vector<std::vector<uint64_t>> counts = AllGatherObjects(world, mine.counts);
  Counts totals;
  for (const std::vector<uint64_t>& of_rank : counts) totals.push_back(detail::Sum(of_rank));
  const bool receives = on_all_ranks || world.rank() == 0;
  std::vector<float> by_rank(receives ? detail::Sum(totals) : 0);
  const Buffer input(mine.outputs.data(), mine.outputs.size());
  const Buffer output(by_rank.data(), by_rank.size());
  if (on_all_ranks)
    world.AllGather(input, output, totals);
  else
    world.Gather(input, output, 0, totals);
  return receives ? InOrderOfData(by_rank, counts) : std::vector<float>{};
}

}  // namespace dtrun::models
