// The gradient of a collective in a backward pass is the collective's transpose. A collective is a
// linear map of the inputs of all ranks. B is the gradient of A if A(x) * g and x * B(g) have the
// same sum over the ranks. This holds for all inputs x and all output gradients g.

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/include/optimizer_rig.h"

namespace dtrun::testing {
namespace {

using Values = std::vector<double>;
using Map = std::function<Values(Communicator&, Values)>;

// Small whole numbers, so that all sums are exact. The seed makes them differ between ranks.
Values Numbers(size_t count, int seed) {
  Values values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<double>((i * 7 + static_cast<size_t>(seed) * 13) % 23) - 11;
  return values;
}

double Product(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Buffer View(Values& values) { return Buffer(values.data(), values.size()); }

// The number of elements in the input or output of a rank.
using Count = std::function<size_t(int rank)>;

void CheckTransposed(int size, const Count& in, const Count& out, const Map& map, const Map& back) {
  CHECK(OnRanks(size, [&](Communicator& world) {
          const Values x = Numbers(in(world.rank()), 1 + world.rank());
          const Values g = Numbers(out(world.rank()), 11 + world.rank());
          const Values y = map(world, x), gradient = back(world, g);
          Expect(y.size() == g.size() && gradient.size() == x.size(), "the counts");
          double sides[2] = {Product(y, g), Product(x, gradient)};
          world.AllReduce(Buffer(sides, 2));
          Expect(sides[0] == sides[1] && sides[0] != 0, "the products");
        }) == Nothing(size));
}

size_t Ranks(const Communicator& world) { return static_cast<size_t>(world.size()); }

// Rank r has r + 1 rows of 3 elements.
size_t RowElements(int rank) { return 3 * (static_cast<size_t>(rank) + 1); }
Counts AllRows(int size) {
  Counts counts;
  for (int rank = 0; rank < size; ++rank) counts.push_back(RowElements(rank));
  return counts;
}
size_t Total(int size) {
  size_t total = 0;
  for (const uint64_t count : AllRows(size)) total += count;
  return total;
}

TEST_CASE("the gradient of an all-reduce is an all-reduce") {
  const int size = GENERATE(1, 2, 3, 4);
  const Count seven = [](int) { return 7; };
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    if (op == ReduceOp::kAverage && size == 3) continue;  // thirds are not exact
    const Map all_reduce = [op](Communicator& world, Values x) {
      world.AllReduce(View(x), op);
      return x;
    };
    CheckTransposed(size, seven, seven, all_reduce, all_reduce);
  }
}

TEST_CASE("the gradient of an all-gather is a reduce-scatter and vice versa") {
  const int size = GENERATE(1, 2, 3, 4);
  const Map gather = [](Communicator& world, Values x) {
    Values all(Total(world.size()));
    world.AllGather(View(x), View(all), AllRows(world.size()));
    return all;
  };
  const Map scatter = [](Communicator& world, Values x) {
    Values mine(RowElements(world.rank()));
    world.ReduceScatter(View(x), View(mine), ReduceOp::kSum, {}, AllRows(world.size()));
    return mine;
  };
  const Count whole = [size](int) { return Total(size); };
  CheckTransposed(size, RowElements, whole, gather, scatter);
  CheckTransposed(size, whole, RowElements, scatter, gather);
}

TEST_CASE("the gradient of a broadcast is a reduce to its root and vice versa") {
  const int size = GENERATE(1, 2, 3, 4);
  for (int root = 0; root < size; ++root) {
    const Map broadcast = [root](Communicator& world, Values x) {
      world.Broadcast(View(x), root);
      return x;
    };
    const Map reduce = [root](Communicator& world, Values x) {
      Values sum(x.size());
      world.Reduce(View(x), View(sum), root);
      return sum;  // zeros on ranks other than the root
    };
    const Count five = [](int) { return 5; };
    CheckTransposed(size, five, five, broadcast, reduce);
    CheckTransposed(size, five, five, reduce, [root](Communicator& world, Values x) {
      world.Broadcast(View(x), root);
      return x;
    });
  }
}

TEST_CASE("the gradient of an all-to-all is an all-to-all with the counts exchanged") {
  const int size = GENERATE(1, 2, 3, 4);
  // Rank a sends a + 2 * b + 1 elements to rank b.
  const auto sends = [](int from, int to) { return static_cast<uint64_t>(from + 2 * to + 1); };
  const auto table = [sends](int rank, size_t ranks, bool sent) {
    Counts counts;
    for (int peer = 0; peer < static_cast<int>(ranks); ++peer)
      counts.push_back(sent ? sends(rank, peer) : sends(peer, rank));
    return counts;
  };
  const auto exchange = [table](bool forth) {
    return [table, forth](Communicator& world, Values x) {
      const Counts out = table(world.rank(), Ranks(world), forth);
      const Counts in = table(world.rank(), Ranks(world), !forth);
      Values received(detail::Sum(in));
      world.AllToAll(View(x), View(received), out, in);
      return received;
    };
  };
  const auto count = [&](bool sent) {
    return [=](int rank) { return detail::Sum(table(rank, static_cast<size_t>(size), sent)); };
  };
  CheckTransposed(size, count(true), count(false), exchange(true), exchange(false));
}

TEST_CASE("output gradients of one sum up to the number of ranks") {
  const int size = GENERATE(2, 4);
  CHECK(OnRanks(size, [](Communicator& world) {
          const double ranks = world.size();
          Values ones(6, 1);
          world.AllReduce(View(ones));
          Expect(ones == Values(6, ranks), "all_reduce: the number of ranks");
          Values gradient(6, 1), root(6);
          world.Reduce(View(gradient), View(root), 1);
          Expect(root == Values(6, world.rank() == 1 ? ranks : 0), "broadcast: the root's alone");
          Values whole(Total(world.size()), 1), mine(RowElements(world.rank()));
          world.ReduceScatter(View(whole), View(mine), ReduceOp::kSum, {}, AllRows(world.size()));
          Expect(
              mine == Values(RowElements(world.rank()), ranks), "all_gather: the number of ranks");
        }) == Nothing(size));
}

}  // namespace
}  // namespace dtrun::testing
