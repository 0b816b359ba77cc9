// Mismatches between ranks, invalid submissions and absent ranks.

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/runtime/named/named_ranks.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

using base::Text;

// Checks that the queue still works after an error.
void ExpectItGoesOn(NamedRank& r) {
  std::vector<float> value = {static_cast<float>(r.rank)};
  r.AllReduce("after", value).Wait();
  ExpectEqual(value, {static_cast<float>(r.size * (r.size - 1) / 2)}, "after");
}

// Every rank submits a tensor "x". All ranks must get the same error.
void CheckMismatch(
    int size, const std::function<NamedWork(NamedRank&, std::vector<float>&)>& submit,
    const std::string& error) {
  CHECK(RunNamed(size, [&](NamedRank& r) {
          for (int step = 0; step < 2; ++step) {  // the second step announces cached numbers
            std::vector<float> memory(10000, 1);
            ExpectEqual(ErrorOf(submit(r, memory)), error);
            ExpectItGoesOn(r);
          }
        }) == Nothing(size));
}

Buffer Of(std::vector<float>& memory, uint64_t count, DType dtype = DType::kF32) {
  return Buffer(memory.data(), count, dtype);
}

TEST_CASE("ranks that disagree on a tensor all get an error with the request of each rank") {
  const std::string disagree = "2: tensor 'x': the ranks disagree on ";
  SECTION("shapes") {
    CheckMismatch(
        3,
        [](NamedRank& r, auto& memory) {
          const uint64_t n = r.rank == 1 ? 18 : 17;
          return r.Submit(Kind::kAllReduce, "x", Of(memory, n * n), {n, n});
        },
        disagree +
            "the shape: ranks 0 and 2 submitted all_reduce (f32[17, 17], sum); rank 1 submitted "
            "all_reduce (f32[18, 18], sum)");
  }
  SECTION("shapes with equal element counts") {
    CheckMismatch(
        2,
        [](NamedRank& r, auto& memory) {
          return r.Submit(
              Kind::kAllReduce, "x", Of(memory, 6),
              r.rank == 0 ? std::vector<uint64_t>{2, 3} : std::vector<uint64_t>{6});
        },
        disagree +
            "the number of dimensions: rank 0 submitted all_reduce (f32[2, 3], sum); rank 1 "
            "submitted all_reduce (f32[6], sum)");
  }
  SECTION("shapes that differ on every rank") {
    CheckMismatch(
        3,
        [](NamedRank& r, auto& memory) {
          const auto n = static_cast<uint64_t>(17 + r.rank);
          return r.Submit(Kind::kAllReduce, "x", Of(memory, n * n * n), {n, n, n});
        },
        disagree +
            "the shape: rank 0 submitted all_reduce (f32[17, 17, 17], sum); rank 1 submitted "
            "all_reduce (f32[18, 18, 18], sum); rank 2 submitted all_reduce (f32[19, 19, 19], "
            "sum)");
  }
  SECTION("shapes of a broadcast") {
    CheckMismatch(
        2,
        [](NamedRank& r, auto& memory) {
          const auto n = static_cast<uint64_t>(10 * (r.rank + 1));
          return r.Submit(Kind::kBroadcast, "x", Of(memory, 17 * n * 17), {17, n, 17});
        },
        disagree +
            "the shape: rank 0 submitted broadcast (f32[17, 10, 17], root rank 0); rank 1 "
            "submitted broadcast (f32[17, 20, 17], root rank 0)");
  }
  SECTION("shapes of a reduce_scatter") {
    CheckMismatch(
        2,
        [](NamedRank& r, auto& memory) {
          const auto rows = static_cast<uint64_t>(8 + r.rank);
          return r.Submit(Kind::kReduceScatter, "x", Of(memory, 3 * rows), {rows, 3});
        },
        disagree +
            "the shape: rank 0 submitted reduce_scatter (f32[8, 3], sum); rank 1 submitted "
            "reduce_scatter (f32[9, 3], sum)");
  }
  SECTION("dimensions of a gather") {
    CheckMismatch(
        2,
        [](NamedRank& r, auto& memory) {
          return r.Submit(
              Kind::kAllGather, "x", Of(memory, 4),
              r.rank == 0 ? std::vector<uint64_t>{4, 1} : std::vector<uint64_t>{4});
        },
        disagree +
            "the number of dimensions: rank 0 submitted all_gather (f32[4, 1]); rank 1 submitted "
            "all_gather (f32[4])");
  }
  SECTION("types") {
    CheckMismatch(
        2,
        [](NamedRank& r, auto& memory) {
          const DType dtype = r.rank % 2 == 0 ? DType::kI32 : DType::kF32;
          return r.Submit(Kind::kAllReduce, "x", Of(memory, 4, dtype), {4});
        },
        disagree +
            "the type: rank 0 submitted all_reduce (i32[4], sum); rank 1 submitted all_reduce "
            "(f32[4], sum)");
  }
  SECTION("operations") {
    CheckMismatch(
        4,
        [](NamedRank& r, auto& memory) {
          return r.Submit(
              r.rank < 3 ? Kind::kAllReduce : Kind::kAllGather, "x", Of(memory, 4), {4});
        },
        disagree +
            "the operation: ranks 0, 1 and 2 submitted all_reduce (f32[4], sum); rank 3 submitted "
            "all_gather (f32[4])");
  }
  SECTION("reduce ops") {
    CheckMismatch(
        2,
        [](NamedRank& r, auto& memory) {
          return r.Submit(
              Kind::kReduceScatter, "x", Of(memory, 4), {4},
              {.op = r.rank == 0 ? ReduceOp::kMin : ReduceOp::kMax});
        },
        disagree +
            "the reduce op: rank 0 submitted reduce_scatter (f32[4], min); rank 1 submitted "
            "reduce_scatter (f32[4], max)");
  }
  SECTION("factors that differ in the last digit") {
    CheckMismatch(
        2,
        [](NamedRank& r, auto& memory) {
          const double factor = r.rank == 0 ? 0.1 : 0.10000000000000002;
          return r.Submit(Kind::kAllReduce, "x", Of(memory, 4), {4}, {.scale = {factor, 1}});
        },
        disagree +
            "the scale: rank 0 submitted all_reduce (f32[4], sum, scaled by 0.1 before); rank 1 "
            "submitted all_reduce (f32[4], sum, scaled by 0.10000000000000002 before)");
  }
  SECTION("roots") {
    CheckMismatch(
        2,
        [](NamedRank& r, auto& memory) {
          return r.Submit(Kind::kBroadcast, "x", Of(memory, 4), {4}, {.root = r.rank});
        },
        disagree +
            "the root: rank 0 submitted broadcast (f32[4], root rank 0); rank 1 submitted "
            "broadcast (f32[4], root rank 1)");
  }
  SECTION("rows of a gather") {
    CheckMismatch(
        2,
        [](NamedRank& r, auto& memory) {
          const auto columns = static_cast<uint64_t>(10 * (r.rank + 1));
          return r.Submit(Kind::kAllGather, "x", Of(memory, 17 * columns), {17, columns});
        },
        disagree +
            "the shape: rank 0 submitted all_gather (f32[17, 10]); rank 1 submitted all_gather "
            "(f32[17, 20])");
  }
  SECTION("rows of an all_to_all") {
    CheckMismatch(
        2,
        [](NamedRank& r, auto& memory) {
          const auto columns = static_cast<uint64_t>(10 * (r.rank + 1));
          return r.Submit(Kind::kAllToAll, "x", Of(memory, 4 * columns), {4, columns});
        },
        disagree +
            "the shape: rank 0 submitted all_to_all (f32[4, 10]); rank 1 submitted all_to_all "
            "(f32[4, 20])");
  }
}

TEST_CASE("different types are a mismatch of every operation") {
  const Kind kind =
      GENERATE(Kind::kAllGather, Kind::kBroadcast, Kind::kAllToAll, Kind::kReduceScatter);
  const std::string what = NameOf(kind);
  const std::string more = kind == Kind::kBroadcast       ? ", root rank 0)"
                           : kind == Kind::kReduceScatter ? ", sum)"
                                                          : ")";
  CheckMismatch(
      3,
      [kind](NamedRank& r, auto& memory) {
        const DType dtype = r.rank % 2 == 0 ? DType::kI32 : DType::kF32;
        return r.Submit(kind, "x", Of(memory, 6, dtype), {6});
      },
      "2: tensor 'x': the ranks disagree on the type: ranks 0 and 2 submitted " + what +
          " (i32[6]" + more + "; rank 1 submitted " + what + " (f32[6]" + more);
}

// --- groups -------------------------------------------------------------------------------------

std::vector<NamedTensor> Group(const std::vector<const char*>& names, std::vector<float>& memory) {
  std::vector<NamedTensor> group;
  for (const char* name : names) {
    group.push_back({.name = name, .input = Buffer(memory.data() + group.size(), 1)});
    group.back().shape = {1};
  }
  return group;
}

TEST_CASE("one mismatched tensor fails its whole group and no other tensor") {
  CHECK(RunNamed(3, [](NamedRank& r) {
          std::vector<float> memory = {1, 2, 3, 4}, other = {5};
          std::vector<NamedTensor> group = Group({"a", "b", "c"}, memory);
          if (r.rank == 2) group[1].input.count = group[1].shape[0] = 2;
          NamedWork together = r.queue.Submit({}, group);
          NamedWork alone = r.AllReduce("d", other);
          const std::string error =
              "2: tensor 'b': the ranks disagree on the shape: ranks 0 and 1 submitted all_reduce "
              "(f32[1], sum, in a group of 3); rank 2 submitted all_reduce (f32[2], sum, in a "
              "group of "
              "3)";
          ExpectEqual(ErrorOf(together), error);
          alone.Wait();
          ExpectEqual(other, {15}, "d");
          ExpectEqual(memory, {1, 2, 3, 4}, "the group is as it was");
          ExpectItGoesOn(r);
          // The names can be used again.
          r.queue.Submit({}, Group({"a", "b", "c"}, memory)).Wait();
          ExpectEqual(memory, {3, 6, 9, 4}, "the group, later");
        }) == Nothing(3));
}

TEST_CASE("a group on one rank and single tensors on another are a mismatch") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          std::vector<float> memory = {1, 2, 3};
          std::string error;
          if (r.rank == 0) {
            error = ErrorOf(r.queue.Submit({}, Group({"a", "b"}, memory)));
          } else {
            std::vector<float> a = {1};
            error = ErrorOf(r.AllReduce("a", a));
          }
          ExpectEqual(
              error,
              "2: tensor 'a': the ranks disagree on the group: rank 0 submitted all_reduce "
              "(f32[1], sum, "
              "in a group of 2); rank 1 submitted all_reduce (f32[1], sum)");
          // Groups of equal size with different names. "c" is never submitted on rank 0.
          error = ErrorOf(r.queue.Submit(
              {}, r.rank == 0 ? Group({"a", "b"}, memory) : Group({"a", "c"}, memory)));
          Expect(
              error.find("tensor 'a': the ranks disagree on the group: rank 0 submitted all_reduce "
                         "(f32[1], sum, in a group of 2) of names with the digest ") !=
                  std::string::npos,
              error);
          ExpectItGoesOn(r);
        }) == Nothing(2));
}

// --- names in flight ----------------------------------------------------------------------------

TEST_CASE("a name that is in flight is refused and its first operation goes on") {
  const Kind kind = GENERATE(
      Kind::kAllReduce, Kind::kAllGather, Kind::kBroadcast, Kind::kAllToAll, Kind::kReduceScatter);
  CHECK(RunNamed(2, [kind](NamedRank& r) {
          std::vector<float> value = {1, 1};
          if (r.rank == 1) r.world.Barrier();
          NamedWork first = r.Submit(kind, "x", Buffer(value.data(), 2), {2});
          if (r.rank == 0) {
            // Rank 1 has not submitted "x" yet, so "x" is in flight.
            const std::string error = ErrorOfCall(
                [&] { static_cast<void>(r.Submit(kind, "x", Buffer(value.data(), 2), {2})); });
            ExpectEqual(
                error,
                "7: tensor 'x' is under way from an earlier submission; wait for that work first, "
                "or use another name");
            r.world.Barrier();
          }
          first.Wait();
          r.queue.Barrier().Wait();
          ExpectItGoesOn(r);
        }) == Nothing(2));
}

TEST_CASE("a group with a name in flight is refused as a whole") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          std::vector<float> b = {1}, memory = {1, 2, 3};
          if (r.rank == 1) r.world.Barrier();
          NamedWork first = r.AllReduce("b", b);
          if (r.rank == 0) {
            ExpectEqual(
                ErrorOfCall([&] {
                  static_cast<void>(r.queue.Submit({}, Group({"a", "b", "c"}, memory)));
                }),
                "7: tensor 'b' is under way from an earlier submission; wait for that work first, "
                "or use another name; nothing of the group was submitted");
            ExpectEqual(
                ErrorOfCall([&] {
                  static_cast<void>(r.queue.Submit({}, Group({"a", "c", "a"}, memory)));
                }),
                "7: tensor 'a' is twice in a group; expected different names");
            r.world.Barrier();
          }
          first.Wait();
          // "a" and "c" were not queued, so they can be submitted now.
          r.queue.Submit({}, Group({"a", "c"}, memory)).Wait();
          ExpectEqual(memory, {2, 4, 3}, "a and c");
        }) == Nothing(2));
}

// --- invalid submissions ------------------------------------------------------------------------

TEST_CASE("invalid submissions are refused at once on their rank") {
  CHECK(RunNamed(3, [](NamedRank& r) {
          std::vector<float> memory(100);
          const auto refused = [&](Kind kind, Buffer buffer, std::vector<uint64_t> shape,
                                   const Operation& operation, const std::string& error) {
            ExpectEqual(
                ErrorOfCall([&] {
                  static_cast<void>(r.Submit(kind, "x", buffer, std::move(shape), operation));
                }),
                error);
          };
          refused(
              Kind::kAllToAll, Of(memory, 4), {4}, {},
              "1: tensor 'x': found 4 rows, which 3 ranks cannot share evenly; give splits");
          for (const Kind kind : {Kind::kAllGather, Kind::kAllToAll, Kind::kReduceScatter}) {
            refused(
                kind, Of(memory, 1), {}, {},
                Text(
                    "1: tensor 'x': found a scalar; expected at least one dimension for ",
                    NameOf(kind)));
          }
          refused(
              Kind::kAllReduce, Of(memory, 4), {5}, {},
              "1: tensor 'x': found 4 elements; expected 5, the product of the shape");
          refused(
              Kind::kAllReduce, Buffer(nullptr, 4, DType::kF32), {4}, {},
              "1: tensor 'x': found null data for 4 elements");
          refused(
              Kind::kAllReduce, Of(memory, 4, static_cast<DType>(77)), {4}, {},
              "1: tensor 'x': found dtype 77, which does not exist");
          refused(
              Kind::kReduceScatter, Of(memory, 4), {4}, {.op = static_cast<ReduceOp>(9)},
              "1: tensor 'x': reduce op 9 does not exist");
          refused(
              Kind::kBroadcast, Of(memory, 4), {4}, {.root = 3},
              "1: tensor 'x': root is 3; expected one of ranks 0, 1 and 2, which are in process "
              "set 0");
          refused(
              Kind::kAllReduce, Of(memory, 4), {4}, {.set = 7},
              "1: all_reduce: process set 7 does not exist");
          NamedTensor splits{.name = "x", .input = Of(memory, 2)};
          splits.shape = {2};
          splits.splits = {1, 1, 1};
          splits.has_splits = true;
          ExpectEqual(
              ErrorOfCall(
                  [&] { static_cast<void>(r.queue.Submit({.kind = Kind::kAllToAll}, {splits})); }),
              "1: tensor 'x': the sum of the splits is 3; expected at most 2, the number of rows");
          NamedTensor output{.name = "x", .input = Of(memory, 4)};
          output.shape = {4};
          output.output = Buffer(memory.data() + 2, 4);
          ExpectEqual(
              ErrorOfCall([&] { static_cast<void>(r.queue.Submit({}, {output})); }),
              "1: tensor 'x': the input and the output overlap; expected the same memory or "
              "separate memory");
          output.output = Buffer(memory.data() + 50, 3);
          ExpectEqual(
              ErrorOfCall([&] { static_cast<void>(r.queue.Submit({}, {output})); }),
              "1: tensor 'x': the output has 3 elements of f32; expected 4 of f32");
          ExpectItGoesOn(r);
        }) == Nothing(3));
}

// --- absent ranks -------------------------------------------------------------------------------

TEST_CASE("a tensor that one rank never submits times out and names the last tensor of that rank") {
  SharedLog log;
  const Job job = {
      .settings = {.stall_warning = std::chrono::seconds(3), .timeout = std::chrono::seconds(6)},
      .log = &log};
  CHECK(
      RunNamed(
          3,
          [](NamedRank& r) {
            std::vector<float> x = {1}, y = {2, 2};
            NamedWork common = r.AllReduce("y", y);
            if (r.rank != 1) {
              NamedWork late = r.AllReduce("x", x);
              const std::string error = ErrorOf(late);
              ExpectEqual(
                  WithoutWaits(error, 6),
                  "4: gave up after N s: tensor 'x', all_reduce (f32[1], sum), submitted by ranks "
                  "0 and 2, "
                  "waits for rank 1; rank 1 submitted 'y' last, all_reduce (f32[2], sum)");
              try {
                late.Wait();
              } catch (const Error& missing) {
                ExpectEqual(missing.ranks(), {1}, "the ranks of the error");
                ExpectEqual(missing.operation(), "all_reduce");
              }
            }
            common.Wait();
            // Rank 1 waits here until the other ranks have timed out.
            r.world.Barrier();
            ExpectEqual(y, {6, 6}, "y");
            ExpectItGoesOn(r);
          },
          job) == Nothing(3));
  Texts texts = log.texts();
  for (std::string& text : texts) text = WithoutWaits(text, 3);
  CHECK(
      std::count(
          texts.begin(), texts.end(),
          "waiting for N s: tensor 'x', all_reduce (f32[1], sum), submitted by ranks 0 and 2, "
          "waits for rank 1; rank 1 submitted 'y' last, all_reduce (f32[2], sum)") == 2);
}

TEST_CASE("a lost rank breaks the queue with an error that names the rank and tensors in flight") {
  std::atomic<bool> seen{false};
  CHECK(
      RunNamed(
          2,
          [&seen](NamedRank& r) {
            if (r.rank == 1) {
              while (!seen) std::this_thread::yield();  // without driving progress
              return;
            }
            // Rank 1 goes on even if a check fails here.
            const std::shared_ptr<void> end(nullptr, [&seen](void*) { seen = true; });
            std::vector<float> x = {1}, y = {1};
            NamedWork work = r.AllReduce("x", x);
            const std::string error = ErrorOf(work);
            const std::string what =
                " s: collective #1 of world/1/1, all_gather (u8, 256 elements), waits for rank 1 "
                "to call it; of the named queue, which has under way 'x', all_reduce (f32[1], sum)";
            Expect(
                error.find("4: gave up after ") == 0 && error.find(what) != std::string::npos,
                "the text of " + error);
            ExpectEqual(ErrorOf(work), error);
            ExpectEqual(ErrorOfCall([&] { static_cast<void>(r.AllReduce("y", y)); }), error);
          },
          {.timeout = std::chrono::seconds(4)}) == Nothing(2));
}

TEST_CASE("operations in flight end with an error when the queue is destroyed") {
  CHECK(RunNamed(2, [](NamedRank& r) {
          std::vector<float> x = {1};
          std::optional<NamedWork> work;
          int called = 0;
          {
            NamedQueue queue(r.world, r.engine, [](auto, const auto&) {}, {});
            if (r.rank == 0) {
              NamedTensor tensor{.name = "x", .input = Buffer(x.data(), 1)};
              tensor.shape = {1};
              work = queue.Submit({}, {tensor}, [&](const auto& submission) {
                if (submission->error != nullptr) ++called;
              });
            }
          }
          Expect(called == (r.rank == 0 ? 1 : 0), "the callback is told");
          if (work)
            ExpectEqual(
                ErrorOf(*work), "1: the named queue was destroyed before the work was done");
        }) == Nothing(2));
}

}  // namespace
}  // namespace dtrun::testing
