// Adaptive summation of named tensors.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/runtime/named/named_ranks.h"
#include "tests/support/adasum_reference.h"

namespace dtrun::testing {
namespace {

using base::Text;

template <typename T>
constexpr double kEpsilon = std::numeric_limits<T>::epsilon();

template <typename T>
NamedWork Adasum(
    NamedRank& r, const std::string& name, std::vector<T>& values, Scale scale = {}, int set = 0) {
  return r.AllReduce(name, values, ReduceOp::kAdasum, scale, set);
}

// Random columns, which are equal on all ranks.
std::vector<Vector> RandomColumns(size_t rows, int columns, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Vector> result(static_cast<size_t>(columns), Vector(rows));
  for (Vector& column : result)
    for (double& value : column) value = normal(random);
  return result;
}

Vector Sum(const std::vector<Vector>& columns) {
  Vector sum(columns[0].size());
  for (const Vector& column : columns)
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += column[i];
  return sum;
}

// Each rank submits its column of every size at once. The results must be `expected` of the
// columns.
template <typename T>
void ExpectOfColumns(
    NamedRank& r, const std::vector<std::vector<Vector>>& columns,
    Vector (*expected)(const std::vector<Vector>&), double epsilons = 1) {
  std::vector<std::vector<T>> values;
  std::vector<NamedWork> works;
  for (const auto& of_size : columns) {
    const Vector& mine = of_size[static_cast<size_t>(r.rank)];
    values.emplace_back(mine.begin(), mine.end());
  }
  for (size_t i = 0; i < values.size(); ++i) works.push_back(Adasum(r, Text("x", i), values[i]));
  for (NamedWork& work : works) work.Wait();
  for (size_t i = 0; i < values.size(); ++i) {
    const double difference =
        RelativeDifference(Vector(values[i].begin(), values[i].end()), expected(columns[i]));
    Expect(
        difference < epsilons * kEpsilon<T>,
        Text(values[i].size(), " elements: off by ", difference, " of ", epsilons * kEpsilon<T>));
  }
}

// --- results ------------------------------------------------------------------------------------

TEST_CASE("each of two tensors loses half of its component along the other tensor") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          // a.b = 4, a.a = 16, b.b = 2:  7/8 a + 0 b
          std::vector<float> values =
              r.rank == 0 ? std::vector<float>{4, 0} : std::vector<float>{1, 1};
          Adasum(r, "x", values).Wait();
          ExpectEqual(values, {3.5f, 0}, "7/8 {4, 0} + 0 {1, 1}");
          // Equal and orthogonal tensors on two ranks.
          std::vector<double> alike = {2, -6, 10}, apart = {r.rank == 0 ? 1.0 : 0, 0, r.rank + 0.0};
          Adasum(r, "alike", alike).Wait();
          ExpectEqual(alike, {2, -6, 10}, "the same tensor on both ranks");
          Adasum(r, "apart", apart).Wait();
          ExpectEqual(apart, {1, 0, 1}, "orthogonal tensors");
        }) == Nothing(2));
}

TEST_CASE("orthogonal tensors of four sizes are added") {
  const int size = GENERATE(2, 4, 8);
  std::vector<std::vector<Vector>> columns;
  const auto s = static_cast<size_t>(size);
  for (const size_t rows : {20 * s - 17, 2 * s + 1, s + 2, size_t{1} << 19})
    columns.push_back(Orthonormal(RandomColumns(rows, size, rows)));
  CHECK(RunNamed(size, [&](NamedRank& r) {
          ExpectOfColumns<float>(r, columns, Sum);
          ExpectOfColumns<double>(r, columns, Sum);
        }) == Nothing(size));
}

TEST_CASE("parallel tensors are averaged for any lengths on the ranks") {
  const int size = GENERATE(2, 4, 8);
  std::vector<std::vector<Vector>> columns;
  const auto s = static_cast<size_t>(size);
  for (const size_t rows : {20 * s - 13, 2 * s + 1, s + 2, size_t{1} << 19}) {
    const Vector direction = RandomColumns(rows, 1, rows)[0];
    std::mt19937_64 random(rows);
    auto& of_size = columns.emplace_back();
    for (int rank = 0; rank < size; ++rank) {
      const double length = 0.5 + static_cast<double>(random() % 1000) / 500;
      of_size.push_back(direction);
      for (double& value : of_size.back())
        value = static_cast<float>(value) * std::round(8 * length);
    }
  }
  const auto mean = [](const std::vector<Vector>& all) {
    Vector sum = Sum(all);
    for (double& value : sum) value /= static_cast<double>(all.size());
    return sum;
  };
  CHECK(RunNamed(size, [&](NamedRank& r) {
          ExpectOfColumns<float>(r, columns, mean);
          ExpectOfColumns<double>(r, columns, mean, 8);  // products have no more digits
        }) == Nothing(size));
}

TEST_CASE("four and eight ranks are combined in pairs in rank order") {
  const int size = GENERATE(4, 8);
  std::vector<std::vector<Vector>> columns;
  for (const size_t rows : {1u, 2u, 100u, 5000u, 100000u})
    columns.push_back(RandomColumns(rows, size, rows));
  for (auto& of_size : columns) {
    const Vector common = of_size[0];
    for (Vector& column : of_size)
      for (size_t i = 0; i < column.size(); ++i)
        column[i] = static_cast<float>(column[i] + common[i]);
  }
  CHECK(RunNamed(size, [&](NamedRank& r) {
          ExpectOfColumns<float>(r, columns, AdasumOf);
        }) == Nothing(size));
}

TEST_CASE("a tensor has the same bits alone and in a group") {
  const int size = GENERATE(2, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
          const std::vector<size_t> counts = {1, 0, 7, 8192, 8193, 30000, 256};
          std::vector<std::vector<float>> alone, together;
          std::mt19937_64 random(static_cast<uint64_t>(r.rank));
          std::normal_distribution<float> normal(1, 1);
          for (const size_t count : counts) {
            auto& values = alone.emplace_back(count);
            for (float& value : values) value = normal(random);
          }
          together = alone;
          for (size_t t = 0; t < counts.size(); ++t) Adasum(r, Text("one", t), alone[t]).Wait();
          std::vector<NamedTensor> group;
          std::vector<std::string> names;
          for (size_t t = 0; t < counts.size(); ++t) names.push_back(Text("all", t));
          for (size_t t = 0; t < counts.size(); ++t) {
            group.push_back(
                {.name = names[t], .input = Buffer(together[t].data(), together[t].size())});
            group.back().shape = {counts[t]};
          }
          r.queue.Submit({.op = ReduceOp::kAdasum}, group).Wait();
          for (size_t t = 0; t < counts.size(); ++t)
            ExpectEqual(together[t], alone[t], Text("tensor ", t));
        }) == Nothing(size));
}

TEST_CASE("a tensor of zeros has no effect and a NaN or an infinity stays in its tensor") {
  CHECK(RunNamed(4, [](NamedRank& r) {
          std::vector<float> zeros(5), mine(5), nan = {1, 2}, infinite = {1, 2}, sound = {1, 2};
          if (r.rank == 2) mine = {1, -2, 3, 0, 1e-30f};
          if (r.rank == 1) nan[0] = std::numeric_limits<float>::quiet_NaN();
          if (r.rank == 3) infinite[1] = std::numeric_limits<float>::infinity();
          std::vector<NamedTensor> group;
          for (auto [name, values] :
               {std::pair("zeros", &zeros),
                {"mine", &mine},
                {"nan", &nan},
                {"inf", &infinite},
                {"sound", &sound}}) {
            group.push_back({.name = name, .input = Buffer(values->data(), values->size())});
            group.back().shape = {values->size()};
          }
          r.queue.Submit({.op = ReduceOp::kAdasum}, group).Wait();
          ExpectEqual(zeros, std::vector<float>(5), "zeros on all ranks");
          ExpectEqual(mine, {1, -2, 3, 0, 1e-30f}, "zeros on all ranks but one");
          ExpectEqual(sound, {1, 2}, "in company of a NaN");
          Expect(std::isnan(nan[0]) && std::isnan(nan[1]), "a tensor with a NaN is NaN");
          Expect(std::isnan(infinite[0]) && std::isnan(infinite[1]), "with an infinity, too");
        }) == Nothing(4));
}

TEST_CASE("the factors of a scale multiply the result and products of f16 do not overflow") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          std::vector<float> values = {r.rank == 0 ? 2.0f : 0, r.rank == 0 ? 0 : 4.0f};
          Adasum(r, "x", values, {0.5, 3}).Wait();
          ExpectEqual(values, {3, 6}, "half of it three times");
          // 60000 and 60000. Their products are far beyond 65504.
          std::vector<uint16_t> halves = {0x7b53, 0x7b53};
          r.Submit(
               Kind::kAllReduce, "halves", Buffer(halves.data(), 2, DType::kF16), {2},
               {.op = ReduceOp::kAdasum})
              .Wait();
          ExpectEqual(halves, {0x7b53, 0x7b53}, "the mean of two that are the same");
        }) == Nothing(2));
}

// --- sets and joins -----------------------------------------------------------------------------

TEST_CASE("two sets of two ranks combine their tensors independently") {
  CHECK(RunNamed(4, [](NamedRank& r) {
          const int sets[] = {r.queue.AddSet({0, 1}), r.queue.AddSet({2, 3})};
          const int mine = sets[r.rank / 2];
          for (int step = 0; step < 5; ++step) {
            std::vector<float> small = {r.rank % 2 == 0 ? 1.0f : 0, r.rank % 2 == 0 ? 0 : 5.0f};
            std::vector<float> large(20000, static_cast<float>(r.rank / 2 * 10 + r.rank % 2));
            NamedWork one = Adasum(r, "small", small, {}, mine);
            NamedWork two = Adasum(r, "large", large, {}, mine);
            one.Wait(), two.Wait();
            ExpectEqual(small, {1, 5}, "orthogonal");
            // In the first set, one rank has zeros. In the second set, the result is the mean of 10
            // and 11.
            ExpectEqual(large, std::vector<float>(20000, r.rank < 2 ? 1.0f : 10.5f), "parallel");
          }
        }) == Nothing(4));
}

TEST_CASE(
    "a joined rank counts as zeros in adasum and leaves the tensors of the other ranks unchanged") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          if (r.rank == 1) {
            for (const size_t count : {3u, 20000u}) {
              std::vector<float> values(count, 0.3f), scaled(count, 0.25f);
              Adasum(r, "x", values).Wait();
              ExpectEqual(values, std::vector<float>(count, 0.3f), "alone");
              Adasum(r, "scaled", scaled, {2, 3}).Wait();
              ExpectEqual(scaled, std::vector<float>(count, 1.5f), "alone, scaled");
            }
          }
          NamedWork join = r.queue.Join();
          join.Wait();
          Expect(join.last_joined() == 1, "the last to join");
          std::vector<float> both = {static_cast<float>(r.rank)};
          Adasum(r, "both", both).Wait();
          ExpectEqual(both, {1}, "all are back");
        }) == Nothing(2));
}

// --- errors -------------------------------------------------------------------------------------

TEST_CASE("adasum of three ranks and of integers and in a reduce_scatter is refused") {
  CHECK(RunNamed(3, [](NamedRank& r) {
          std::vector<float> values(4, 1);
          ExpectEqual(
              ErrorOfCall([&] { static_cast<void>(Adasum(r, "x", values)); }),
              "1: tensor 'x': adasum on the 3 ranks of process set 0; expected a number of ranks "
              "that is a power of two");
          const int two = r.queue.AddSet({0, 2});
          if (r.rank == 1) return;
          Adasum(r, "x", values, {}, two).Wait();
          ExpectEqual(values, std::vector<float>(4, 1), "a set of two can");
          std::vector<int64_t> integers(4);
          ExpectEqual(
              ErrorOfCall([&] { static_cast<void>(Adasum(r, "i", integers, {}, two)); }),
              "1: tensor 'i': adasum of i64; expected f16, bf16, f32 or f64");
          ExpectEqual(
              ErrorOfCall([&] {
                static_cast<void>(r.Submit(
                    Kind::kReduceScatter, "s", Buffer(values.data(), 4), {4},
                    {.op = ReduceOp::kAdasum, .set = two}));
              }),
              "1: tensor 's': reduce_scatter has no reduce op adasum, which needs whole tensors; "
              "expected all_reduce");
        }) == Nothing(3));
}

TEST_CASE("ranks that disagree on adasum are named and the queue stays usable") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          std::vector<float> values(4, 1);
          const ReduceOp op = r.rank == 0 ? ReduceOp::kAdasum : ReduceOp::kSum;
          ExpectEqual(
              ErrorOf(r.AllReduce("x", values, op)),
              "2: tensor 'x': the ranks disagree on the reduce op: rank 0 submitted all_reduce "
              "(f32[4], adasum); rank 1 submitted all_reduce (f32[4], sum)");
          // A sum and an adasum do not share a batch.
          std::vector<float> sum(3, 1), adasum(3, 1);
          NamedWork one = r.AllReduce("sum", sum), two = Adasum(r, "adasum", adasum);
          one.Wait(), two.Wait();
          ExpectEqual(sum, {2, 2, 2}, "the sum");
          ExpectEqual(adasum, {1, 1, 1}, "adasum");
        }) == Nothing(2));
}

}  // namespace
}  // namespace dtrun::testing
