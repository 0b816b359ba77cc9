// Process sets, and joins of ranks that have no more tensors to submit.

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "tests/runtime/named/named_ranks.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

using base::Text;

std::vector<int> Every(int first, int step, int size) {
  std::vector<int> ranks;
  for (int r = first; r < size; r += step) ranks.push_back(r);
  return ranks;
}

// --- process sets -------------------------------------------------------------------------------

TEST_CASE("the sets of even and of odd ranks work side by side under the same names") {
  const int size = GENERATE(2, 3, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
          const int even = r.queue.AddSet(Every(0, 2, r.size)),
                    odd = r.queue.AddSet(Every(1, 2, r.size));
          Expect(even == 1 && odd == 2, "numbers are given in order");
          const bool is_even = r.rank % 2 == 0;
          const int mine = is_even ? even : odd;
          const auto members = static_cast<float>(r.queue.RanksOf(mine).size());
          for (int step = 0; step < 5; ++step) {
            std::vector<float> here = {static_cast<float>(step), 2}, everywhere = {1};
            NamedWork one = r.AllReduce("x", here, ReduceOp::kSum, {}, mine);
            NamedWork two = r.AllReduce("x", everywhere);  // another set has its own "x"
            one.Wait(), two.Wait();
            ExpectEqual(here, {static_cast<float>(step) * members, 2 * members}, "in my set");
            ExpectEqual(everywhere, {static_cast<float>(r.size)}, "everywhere");
          }
          // The root is numbered in the queue, not in the set.
          std::vector<int32_t> value = {r.rank};
          const int root = r.queue.RanksOf(mine).back();
          r.Submit(Kind::kBroadcast, "b", Buffer(value.data(), 1), {1}, {.root = root, .set = mine})
              .Wait();
          ExpectEqual(value, {root}, "broadcast in a set");
          ExpectEqual(
              ErrorOfCall([&] {
                static_cast<void>(r.Submit(
                    Kind::kBroadcast, "b", Buffer(value.data(), 1), {1},
                    {.root = is_even ? 1 : 0, .set = mine}));
              }),
              Text(
                  "1: tensor 'b': root is ", is_even ? 1 : 0, "; expected one of ",
                  base::RankList(r.queue.RanksOf(mine)), ", which are in process set ", mine));
        }) == Nothing(size));
}

TEST_CASE("every operation and a group involve only the ranks of their set") {
  const int size = GENERATE(2, 3, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
          const int even = r.queue.AddSet(Every(0, 2, r.size)),
                    odd = r.queue.AddSet(Every(1, 2, r.size));
          const int mine = r.rank % 2 == 0 ? even : odd;
          const std::vector<int> ranks = r.queue.RanksOf(mine);
          const auto members = static_cast<int32_t>(ranks.size());
          const size_t n = ranks.size(), place = static_cast<size_t>(r.rank) / 2;
          std::vector<int32_t> gathered(place + 1, r.rank), dealt, rows, least = {r.rank};
          for (int32_t to = 0; to < members; ++to) dealt.insert(dealt.end(), 2, 10 * r.rank + to);
          for (int32_t row = 0; row < 2 * members + 1; ++row) rows.push_back(row);
          std::vector<NamedWork> works;
          const auto submit = [&](Kind kind, const char* name, std::vector<int32_t>& values,
                                  ReduceOp op = ReduceOp::kSum) {
            works.push_back(r.Submit(
                kind, name, Buffer(values.data(), values.size()), {values.size()},
                {.op = op, .set = mine}));
          };
          submit(Kind::kAllGather, "g", gathered);
          submit(Kind::kAllToAll, "a", dealt);
          submit(Kind::kReduceScatter, "rs", rows);
          submit(Kind::kAllReduce, "min", least, ReduceOp::kMin);
          float one = 1, two = 2;
          std::vector<NamedTensor> group;
          group.push_back({.name = "one", .input = Buffer(&one, 1)});
          group.push_back({.name = "two", .input = Buffer(&two, 1)});
          for (NamedTensor& tensor : group) tensor.shape = {1};
          works.push_back(r.queue.Submit({.set = mine}, group));
          for (NamedWork& work : works) work.Wait();
          std::vector<int32_t> all, came, share;
          for (size_t s = 0; s < n; ++s) {
            all.insert(all.end(), s + 1, ranks[s]);
            came.insert(came.end(), 2, 10 * ranks[s] + static_cast<int32_t>(place));
          }
          // The first rank of a set gets the remaining row.
          const size_t first = place == 0 ? 0 : 2 * place + 1;
          for (size_t row = first; row < 2 * place + 3; ++row)
            share.push_back(members * static_cast<int32_t>(row));
          ExpectEqual(ResultOf<int32_t>(works[0]), all, "all_gather");
          ExpectEqual(ResultOf<int32_t>(works[1]), came, "all_to_all");
          ExpectEqual(
              works[1].result(0).received_splits, std::vector<uint64_t>(n, 2), "received splits");
          ExpectEqual(ResultOf<int32_t>(works[2]), share, "reduce_scatter");
          ExpectEqual(least, {r.rank % 2}, "the first rank of the set");
          Expect(one == static_cast<float>(n) && two == static_cast<float>(2 * n), "the group");
          for (const int root : ranks) {
            std::vector<int32_t> value = {r.rank};
            r.Submit(
                 Kind::kBroadcast, "b", Buffer(value.data(), 1), {1}, {.root = root, .set = mine})
                .Wait();
            ExpectEqual(value, {root}, "broadcast");
          }
        }) == Nothing(size));
}

TEST_CASE("a barrier of one set does not wait for the ranks of another set") {
  std::atomic<bool> odd_passed{false};
  CHECK(RunNamed(4, [&odd_passed](NamedRank& r) {
          const int even = r.queue.AddSet({0, 2}), odd = r.queue.AddSet({1, 3});
          if (r.rank == 0) {
            // Calls the barrier of its set only after the other set has passed its barrier.
            while (!odd_passed) std::this_thread::yield();
          }
          r.queue.Barrier(r.rank % 2 == 0 ? even : odd).Wait();
          if (r.rank == 2) Expect(odd_passed, "rank 2 waited for rank 0");
          if (r.rank == 1) odd_passed = true;
        }) == Nothing(4));
}

TEST_CASE("a barrier ends when all ranks have called it") {
  const int size = GENERATE(1, 2, 4);
  std::atomic<int> here{0};
  CHECK(RunNamed(size, [&here](NamedRank& r) {
          for (int step = 1; step <= 10; ++step) {
            if (r.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            ++here;
            r.queue.Barrier().Wait();
            Expect(here >= step * r.size, "all ranks have come");
            r.queue.Barrier().Wait();
          }
        }) == Nothing(size));
}

TEST_CASE("a rank outside of a set and an unknown set are refused") {
  CHECK(RunNamed(3, [](NamedRank& r) {
          const int set = r.queue.AddSet({2, 0});
          std::vector<float> x = {1};
          const auto call = [&] {
            return ErrorOfCall([&] { r.AllReduce("x", x, ReduceOp::kSum, {}, set).Wait(); });
          };
          if (r.rank == 1) {
            const std::string what =
                ": this is rank 1, which is not in process set 1; its members are ranks 0 and 2";
            ExpectEqual(call(), "9: all_reduce" + what);
            ExpectEqual(
                ErrorOfCall([&] { static_cast<void>(r.queue.Barrier(set)); }), "9: barrier" + what);
            ExpectEqual(
                ErrorOfCall([&] { static_cast<void>(r.queue.Join(set)); }), "9: join" + what);
          } else {
            ExpectEqual(call(), "");
            ExpectEqual(x, {2}, "x");
          }
          ExpectEqual(
              ErrorOfCall([&] { static_cast<void>(r.queue.Barrier(10)); }),
              "1: barrier: process set 10 does not exist");
          ExpectEqual(r.queue.RanksOf(set), {0, 2}, "members");  // also known on rank 1
        }) == Nothing(3));
}

TEST_CASE("all ranks add and remove the same sets and set numbers are never reused") {
  CHECK(RunNamed(3, [](NamedRank& r) {
          const auto add = [&](const std::vector<int>& ranks) {
            return ErrorOfCall([&] { r.queue.AddSet(ranks); });
          };
          const auto remove = [&](int set) { return ErrorOfCall([&] { r.queue.RemoveSet(set); }); };
          Expect(r.queue.AddSet({0}) == 1 && r.queue.AddSet({1, 2}) == 2, "1 and 2");
          ExpectEqual(
              add({2, 1}), "8: process set of ranks 1 and 2 exists already, as process set 2");
          ExpectEqual(
              add({2, 0, 1}),
              "8: process set of ranks 0, 1 and 2 exists already, as process set 0");
          ExpectEqual(
              add({0, 3}),
              "1: process set of ranks 0 and 3: rank 3 does not exist; expected ranks from 0 to 2");
          ExpectEqual(add({0, 1, 1}), "1: process set of ranks 0, 1 and 1: rank 1 is listed twice");
          ExpectEqual(add({}), "1: a process set has no ranks; expected one at least");
          ExpectEqual(
              add(r.rank == 1 ? std::vector<int>{0, 1} : std::vector<int>{0, 2}),
              "2: the ranks have different process sets to add or remove: process set 0 is to add, "
              "of "
              "ranks 0 and 1 on rank 1, to add, of ranks 0 and 2 on ranks 0 and 2");
          ExpectEqual(remove(1), "");
          ExpectEqual(remove(1), "1: process set 1 does not exist");
          ExpectEqual(remove(0), "1: process set 0 has all ranks and cannot be removed");
          Expect(r.queue.AddSet({0, 2}) == 3, "3, not 1");
          Expect(r.queue.AddSet({0}) == 4, "the ranks of set 1 again, with another number");
          if (r.rank != 1) {
            std::vector<float> x = {1};
            r.AllReduce("x", x, ReduceOp::kSum, {}, 3).Wait();
            ExpectEqual(x, {2}, "x");
          }
          // An operation is in flight on one rank, so no rank removes the set.
          std::vector<float> y = {1};
          std::optional<NamedWork> work;
          if (r.rank == 2) work = r.AllReduce("y", y, ReduceOp::kSum, {}, 2);
          ExpectEqual(remove(2), "1: process set 2 has work under way; wait for the work first");
          if (r.rank == 1) work = r.AllReduce("y", y, ReduceOp::kSum, {}, 2);
          if (work) work->Wait();
          ExpectEqual(y, {r.rank == 0 ? 1.0f : 2.0f}, "y");
          ExpectEqual(remove(2), "");
        }) == Nothing(3));
}

TEST_CASE("a queue over some ranks numbers them from 0 and its errors use the ranks of the job") {
  CHECK(RunNamed(4, [](NamedRank& r) {
          const std::unique_ptr<ops::Communicator> some = r.world.Subset({3, 1});
          if (some == nullptr) return;
          NamedQueue queue(*some, r.engine, [](auto, const auto&) {}, {});
          NamedRank own{*some, r.engine, queue, some->rank(), some->size()};
          ExpectEqual(queue.RanksOf(0), {0, 1}, "ranks of the queue");
          std::vector<float> sum = {static_cast<float>(r.rank)}, first = sum, wrong(2);
          own.AllReduce("sum", sum).Wait();
          ExpectEqual(sum, {4}, "of ranks 3 and 1");
          own.Submit(Kind::kBroadcast, "first", Buffer(first.data(), 1), {1}, {.root = 0}).Wait();
          ExpectEqual(first, {3}, "rank 3 is the first");
          wrong.resize(r.rank == 3 ? 1 : 2);
          ExpectEqual(
              ErrorOf(own.AllReduce("wrong", wrong)),
              "2: tensor 'wrong': the ranks disagree on the shape: rank 3 submitted all_reduce "
              "(f32[1], sum); rank 1 submitted all_reduce (f32[2], sum)");
          some->Barrier();
        }) == Nothing(4));
}

// --- join ---------------------------------------------------------------------------------------

TEST_CASE("ranks go on without joined ranks and join returns the last rank that joined") {
  const int size = GENERATE(1, 2, 3, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
          for (int epoch = 0; epoch < 3; ++epoch) {
            const int steps = 2 + 3 * r.rank;
            for (int step = 0; step < steps; ++step) {
              int active = 0;
              for (int other = 0; other < r.size; ++other) active += step < 2 + 3 * other ? 1 : 0;
              // The mean is over the active ranks, not over all ranks.
              std::vector<float> mean = {6, static_cast<float>(step)}, sum = {1};
              NamedWork one = r.AllReduce("mean", mean, ReduceOp::kAverage);
              NamedWork two = r.AllReduce("sum", sum);
              one.Wait(), two.Wait();
              ExpectEqual(mean, {6, static_cast<float>(step)}, Text("mean of step ", step));
              ExpectEqual(sum, {static_cast<float>(active)}, Text("sum of step ", step));
            }
            NamedWork join = r.queue.Join();
            join.Wait();
            Expect(join.last_joined() == r.size - 1, "the last one to join had most to do");
          }
        }) == Nothing(size));
}

template <typename T>
void ReduceWithoutRank0(NamedRank& r) {
  // Reduces over the other ranks. With zeros as rank 0's values, each result would be wrong.
  const T least = std::is_signed_v<T> ? T(-5) : T(3);
  const auto reduced = [&](ReduceOp op, T value, Scale scale = {}) {
    std::vector<T> values = {value, value, value};
    r.AllReduce("x", values, op, scale).Wait();
    Expect(values[0] == values[2], "all elements alike");
    return +values[0];
  };
  const auto own = static_cast<T>(r.rank);
  const int others = r.size - 1;
  Expect(
      reduced(ReduceOp::kMax, static_cast<T>(least + own)) == +static_cast<T>(least + others),
      "max");
  Expect(reduced(ReduceOp::kMin, static_cast<T>(own + T(7))) == +T(8), "min");
  Expect(reduced(ReduceOp::kProduct, T(2)) == +static_cast<T>(1 << others), "product");
  Expect(reduced(ReduceOp::kSum, T(2)) == +static_cast<T>(2 * others), "sum");
  Expect(reduced(ReduceOp::kAverage, T(4)) == +T(4), "average");
  Expect(reduced(ReduceOp::kMin, T(8), {0.5, 1}) == +T(4), "min of halves");
  Expect(
      reduced(ReduceOp::kProduct, T(4), {0.5, 1}) == +static_cast<T>(1 << others),
      "product of halves");
  if (std::is_signed_v<T>)
    Expect(reduced(ReduceOp::kMax, T(8), {-1, 1}) == +static_cast<T>(-8), "max of negatives");
}

TEST_CASE("a joined rank counts as the identity of each reduce op for every type") {
  CHECK(RunNamed(3, [](NamedRank& r) {
          if (r.rank > 0) {
            ReduceWithoutRank0<uint8_t>(r);
            ReduceWithoutRank0<int8_t>(r);
            ReduceWithoutRank0<uint16_t>(r);
            ReduceWithoutRank0<int16_t>(r);
            ReduceWithoutRank0<uint32_t>(r);
            ReduceWithoutRank0<int32_t>(r);
            ReduceWithoutRank0<uint64_t>(r);
            ReduceWithoutRank0<int64_t>(r);
            ReduceWithoutRank0<float>(r);
            ReduceWithoutRank0<double>(r);
            std::vector<uint8_t> bools = {1, 0};
            r.Submit(
                 Kind::kAllReduce, "and", Buffer(bools.data(), 2, DType::kBool), {2},
                 {.op = ReduceOp::kMin})
                .Wait();
            ExpectEqual(bools, {1, 0}, "and");
            // f16 -inf and -2. A zero from rank 0 would be the maximum.
            std::vector<uint16_t> halves = {0xfc00, 0xc000};
            r.Submit(
                 Kind::kAllReduce, "f16", Buffer(halves.data(), 2, DType::kF16), {2},
                 {.op = ReduceOp::kMax})
                .Wait();
            ExpectEqual(halves, {0xfc00, 0xc000}, "f16");
          }
          NamedWork join = r.queue.Join();
          join.Wait();
          Expect(join.last_joined() > 0, "rank 0 was first");
        }) == Nothing(3));
}

TEST_CASE("every operation other than all_reduce goes on without a joined rank") {
  const uint64_t batch_bytes = GENERATE(0, 4 << 20);
  CHECK(
      RunNamed(
          3,
          [](NamedRank& r) {
            if (r.rank != 1) {
              const int32_t own = r.rank;
              std::vector<int32_t> rows(4, own), value = {own}, six = {0, 10, 20, 30, 40, 50};
              std::vector<NamedWork> works;
              works.push_back(r.Submit(Kind::kAllGather, "g", Buffer(rows.data(), 4), {2, 2}));
              works.push_back(r.Submit(Kind::kAllGather, "h", Buffer(value.data(), 1), {1}));
              works.push_back(r.Submit(Kind::kAllToAll, "a", Buffer(six.data(), 6), {6}));
              works.push_back(r.Submit(Kind::kReduceScatter, "rs", Buffer(six.data(), 6), {3, 2}));
              for (NamedWork& work : works) work.Wait();
              ExpectEqual(ResultOf<int32_t>(works[0]), {0, 0, 0, 0, 2, 2, 2, 2}, "all_gather");
              ExpectEqual(ShapeOf(works[0].result(0)), {4, 2}, "shape of the all_gather");
              ExpectEqual(ResultOf<int32_t>(works[1]), {0, 2}, "all_gather");
              const std::vector<int32_t> dealt = own == 0 ? std::vector<int32_t>{0, 10, 0, 10}
                                                          : std::vector<int32_t>{40, 50, 40, 50};
              ExpectEqual(ResultOf<int32_t>(works[2]), dealt, "all_to_all");
              ExpectEqual(
                  works[2].result(0).received_splits, {2, 0, 2}, "nothing comes from rank 1");
              const std::vector<int32_t> share =
                  own == 0 ? std::vector<int32_t>{0, 20} : std::vector<int32_t>{80, 100};
              ExpectEqual(ResultOf<int32_t>(works[3]), share, "reduce_scatter");
              r.Submit(Kind::kBroadcast, "b", Buffer(value.data(), 1), {1}, {.root = 2}).Wait();
              ExpectEqual(value, {2}, "broadcast");
              ExpectEqual(
                  ErrorOf(r.Submit(
                      Kind::kBroadcast, "from 1", Buffer(value.data(), 1), {1}, {.root = 1})),
                  "1: tensor 'from 1': broadcast (i32[1], root rank 1): the root, rank 1, has "
                  "joined and "
                  "brings nothing");
              r.queue.Barrier().Wait();
              // A mismatch between active ranks is still an error.
              const auto n = static_cast<uint64_t>(r.rank + 1);
              ExpectEqual(
                  ErrorOf(r.Submit(Kind::kAllReduce, "x", Buffer(six.data(), n), {n})),
                  "2: tensor 'x': the ranks disagree on the shape: rank 0 submitted all_reduce "
                  "(i32[1], "
                  "sum); rank 2 submitted all_reduce (i32[3], sum)");
            }
            NamedWork join = r.queue.Join();
            join.Wait();
          },
          {.settings = {.batch_bytes = batch_bytes}}) == Nothing(3));
}

TEST_CASE("tensors submitted before a join are done and later submissions are refused") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          std::vector<float> x = {1}, y = {1};
          std::optional<NamedWork> work;
          if (r.rank == 0) work = r.AllReduce("x", x);
          if (r.rank == 0) {
            NamedWork join = r.queue.Join();
            ExpectEqual(
                ErrorOfCall([&] { static_cast<void>(r.AllReduce("y", y)); }),
                "1: this rank has joined; wait for the join before you submit again");
            r.world.Barrier();
            work->Wait();
            ExpectEqual(x, {2}, "x");
            join.Wait();
          } else {
            r.world.Barrier();
            r.AllReduce("x", x).Wait();
            ExpectEqual(x, {2}, "x");
            r.queue.Join().Wait();
          }
          r.AllReduce("y", y).Wait();
          ExpectEqual(y, {2}, "y, when the join is done");
        }) == Nothing(2));
}

TEST_CASE("a join times out and names the absent rank and may be repeated") {
  SharedLog log;
  const Job job = {
      .settings =
          {.stall_warning = std::chrono::milliseconds(500),
           .timeout = std::chrono::milliseconds(1100)},
      .log = &log};
  CHECK(
      RunNamed(
          2,
          [](NamedRank& r) {
            std::vector<float> x = {1}, y = {1};
            r.AllReduce("y", y).Wait();
            if (r.rank == 0) {
              NamedWork join = r.queue.Join();
              ExpectEqual(
                  ErrorOfCall([&] { static_cast<void>(r.queue.Join()); }),
                  "1: this rank has joined; wait for the join before you submit again");
              ExpectEqual(
                  WithoutWaits(ErrorOf(join), 1),
                  "4: gave up after N s: join waits for rank 1; rank 1 submitted 'y' last, "
                  "all_reduce (f32[1], sum)");
            }
            r.world.Barrier();
            // Rank 0 takes part again.
            r.AllReduce("x", x).Wait();
            ExpectEqual(x, {2}, "x");
            NamedWork join = r.queue.Join();
            join.Wait();
            Expect(join.last_joined() >= 0 && join.last_joined() < 2, "somebody was the last");
          },
          job) == Nothing(2));
  Texts texts = log.texts();
  for (std::string& text : texts) text = WithoutWaits(text, 0);
  CHECK(
      std::count(
          texts.begin(), texts.end(),
          "waiting for N s: join waits for rank 1; rank 1 submitted 'y' last, all_reduce (f32[1], "
          "sum)") == 1);
}

TEST_CASE(
    "a join of a set involves only the ranks of the set and returns the last rank's number in the "
    "set") {
  CHECK(RunNamed(4, [](NamedRank& r) {
          const int set = r.queue.AddSet({1, 2, 3});
          std::vector<float> all = {1};
          if (r.rank != 0) {
            if (r.rank == 2) {
              std::vector<float> x = {5};
              r.AllReduce("x", x, ReduceOp::kAverage, {}, set).Wait();
              ExpectEqual(x, {5}, "alone in the set");
            }
            NamedWork join = r.queue.Join(set);
            join.Wait();
            Expect(join.last_joined() == 1, "rank 1 of the set, which is rank 2");
          }
          r.AllReduce("all", all).Wait();
          ExpectEqual(all, {4}, "everywhere");
        }) == Nothing(4));
}

}  // namespace
}  // namespace dtrun::testing
