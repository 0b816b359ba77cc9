// The named queue through the C++ header and the C ABI.

#include <dtrun/named_queue.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"
#include "ops/engine/flight_recorder.h"
#include "ops/engine/progress_engine.h"
#include "ops/shm/shm_communicator.h"
#include "runtime/c_api/handles.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {
namespace {

struct PublicRank {
  Communicator& world;
  ops::Engine& engine;
};

// Returns the error of each rank, "" if the rank succeeds.
Texts OnRanks(int size, const std::function<void(PublicRank&)>& rank_main) {
  const base::SteadyClock clock;
  const base::LogSink log = [](auto, const auto&) {};
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    const auto recorder = ops::FlightRecorder::InMemory(bootstrap.rank(), "here");
    ops::Engine engine({.may_spin = false, .recorder = recorder}, clock, log);
    const auto shm =
        ops::CreateShmCommunicator(bootstrap, engine, ops::Members::World(bootstrap.size()));
    dtrun_communicator handle{
        {.recorder = recorder.get(), .log = &log, .engine = &engine}, shm.get(), nullptr, {}};
    Communicator world(&handle, Communicator::Ownership::kBorrowed);
    PublicRank rank{world, engine};
    rank_main(rank);
    world.Barrier();
  });
}

std::string TextOf(dtrun_error* error) {
  const std::string text =
      error == nullptr ? "" : base::Text(dtrun_error_code(error), ": ", dtrun_error_message(error));
  dtrun_error_destroy(error);
  return text;
}

void ExpectError(dtrun_error* error, const std::string& expected) {
  const std::string found = TextOf(error);
  Expect(found == expected, found + "\nexpected: " + expected);
}

TEST_CASE("tensors and groups and sets and a join work through the C++ header") {
  CHECK(
      OnRanks(3, [](PublicRank& r) {
        const int rank = r.world.rank();
        dtrun::NamedQueue queue(r.world, {.sets = {{0, 1}, {2}}});
        Expect(queue.Sets() == std::vector<int>{0, 1, 2}, "all sets");
        Expect(queue.RanksOf(0) == std::vector<int>{0, 1, 2}, "set 0");
        Expect(queue.RanksOf(2) == std::vector<int>{2}, "set 2");
        std::vector<float> a = {1, 2}, b = {3};
        std::vector<QueuedTensor> group = {
            {"a", Buffer(a.data(), 2), {2, 1}}, QueuedTensor::Flat("b", Buffer(b.data(), 1))};
        if (rank == 1) std::swap(group[0], group[1]);
        dtrun::NamedWork work = queue.AllReduce(group, {.op = ReduceOp::kAverage, .scale = {2, 1}});
        work.Wait();
        Expect(work.Test(), "done work is done");
        Expect(a == std::vector<float>{2, 4} && b == std::vector<float>{6}, "means of doubles");
        Expect(work.ResultShape(rank == 1 ? 1 : 0) == Shape{2, 1}, "the shape of a");
        Expect(work.Result(rank == 1 ? 0 : 1).data == b.data(), "the result of b is in place");

        std::vector<int32_t> sent = {rank, rank, rank};
        dtrun::NamedWork exchange =
            queue.AllToAll({{"x", Buffer(sent.data(), 3), {3}, {}, {1, 2, 0}}});
        exchange.Wait();
        Expect(
            exchange.ReceivedSplits(3) ==
                (rank == 2 ? Counts{0, 0, 0} : Counts(3, rank == 0 ? 1 : 2)),
            "received splits");
        Expect(exchange.ResultShape() == Shape{rank == 0 ? 3u : rank == 1 ? 6u : 0u}, "its shape");

        float one = 1;
        queue.AllReduce("in a set", Buffer(&one, 1), {.set = rank == 2 ? 2 : 1}).Wait();
        Expect(one == (rank == 2 ? 1 : 2), "the sum of the set");
        dtrun::NamedWork join = queue.Join();
        join.Wait();
        Expect(join.LastJoined() >= 0 && join.LastJoined() < 3, "somebody was the last");
      }) == Nothing(3));
}

TEST_CASE(
    "an invalid list of initial sets is refused on all ranks and a valid list works after it") {
  CHECK(OnRanks(3, [](PublicRank& r) {
          using Sets = std::vector<std::vector<int>>;
          const int rank = r.world.rank();
          const auto expect_refused = [&](const Sets& sets, const std::string& expected) {
            std::string found;
            try {
              NamedQueueOptions options;
              options.sets = sets;
              dtrun::NamedQueue queue(r.world, options);
            } catch (const Error& error) {
              found = base::Text(static_cast<int>(error.code()), ": ", error.what());
            }
            Expect(found == expected, found + "\nexpected: " + expected);
          };
          expect_refused(
              {{0, 1}, {0, 1}}, "8: process set of ranks 0 and 1 exists already, as process set 1");
          expect_refused(
              {{2}, {0, 1}, {1, 0}},
              "8: process set of ranks 0 and 1 exists already, as process set 2");
          expect_refused(
              {{2, 0, 1}}, "8: process set of ranks 0, 1 and 2 exists already, as process set 0");
          expect_refused(
              {{0, 3}},
              "1: process set of ranks 0 and 3: rank 3 does not exist; expected ranks from 0 to 2");
          expect_refused(
              rank == 1 ? Sets{{0, 1}} : Sets{{0, 2}},
              "2: the ranks have different process sets to add or remove: process set 0 is to add, "
              "of ranks 0 and 1 on rank 1, to add, of ranks 0 and 2 on ranks 0 and 2");

          expect_refused(
              rank == 1 ? Sets{{0, 1}} : Sets{},
              "2: the ranks have different named queues: the named queue's options are "
              "batch_bytes=4194304 cache_capacity=1024 process sets=0 on ranks 0 and 2, "
              "batch_bytes=4194304 cache_capacity=1024 process sets=1 on rank 1");

          NamedQueueOptions options;
          options.sets = rank == 1 ? Sets{{0}, {2, 1}} : Sets{{0}, {1, 2}};
          dtrun::NamedQueue queue(r.world, options);
          Expect(queue.RanksOf(0) == std::vector<int>{0, 1, 2}, "set 0");
          Expect(queue.RanksOf(1) == std::vector<int>{0}, "set 1");
          Expect(queue.RanksOf(2) == std::vector<int>{1, 2}, "set 2");
          const int mine = rank == 0 ? 1 : 2;
          NamedOptions in_my_set;
          in_my_set.set = mine;
          float value = 1;
          queue.AllReduce("x", Buffer(&value, 1), in_my_set).Wait();
          Expect(value == (rank == 0 ? 1 : 2), "the sum of the set");
          // Rank 1 submits until rank 2 has joined, so rank 1 joins last in its set.
          if (rank == 1) {
            queue.AllReduce("alone", Buffer(&value, 1), in_my_set).Wait();
            Expect(value == 2, "alone in the set");
          }
          dtrun::NamedWork join = queue.Join(mine);
          join.Wait();
          Expect(join.LastJoined() == (rank == 0 ? 0 : 1), "its number is that in the queue");
        }) == Nothing(3));
}

TEST_CASE("an all_to_all needs a split for each rank of its set") {
  CHECK(OnRanks(3, [](PublicRank& r) {
          dtrun::NamedQueue queue(r.world);
          std::vector<float> rows = {1, 2, 3};
          QueuedTensor tensor = QueuedTensor::Flat("x", Buffer(rows.data(), 3));
          tensor.splits = {1, 2};
          std::string found;
          try {
            static_cast<void>(queue.AllToAll({tensor}));
          } catch (const Error& error) {
            found = base::Text(static_cast<int>(error.code()), ": ", error.what());
          }
          Expect(found == "1: tensor 'x': found 2 splits; expected one for each of 3 ranks", found);
          tensor.splits = {1, 1, 1};
          dtrun::NamedWork work = queue.AllToAll({tensor});
          work.Wait();
          const auto* first = static_cast<const float*>(work.Result().data);
          Expect(
              std::vector<float>(first, first + 3) ==
                  std::vector<float>(3, static_cast<float>(r.world.rank() + 1)),
              "the rows that came");
        }) == Nothing(3));
}

TEST_CASE("invalid calls of a C program get an error that names the mistake") {
  CHECK(OnRanks(1, [](PublicRank& r) {
          dtrun::NamedQueue cpp(r.world);
          dtrun_named_queue* queue = nullptr;
          dtrun_named_queue_options options = dtrun_default_named_queue_options();
          options.timeout_s = -1;
          ExpectError(
              dtrun_named_queue_create(r.world.handle(), &options, &queue),
              "1: timeout_s is -1; expected a number of seconds up to 1000000, or 0");
          options = dtrun_default_named_queue_options();
          options.struct_bytes = 8;
          ExpectError(
              dtrun_named_queue_create(r.world.handle(), &options, &queue),
              base::Text(
                  "1: struct_bytes of the options is 8; expected ", sizeof options,
                  ": begin with dtrun_default_named_queue_options()"));
          ExpectError(dtrun_named_queue_create(r.world.handle(), nullptr, &queue), "");

          float value = 1;
          const uint64_t count = 1;
          dtrun_named_tensor tensor = {};
          tensor.input = dtrun_host_buffer(&value, 1, DTRUN_F32);
          tensor.shape = &count;
          tensor.dimensions = 1;
          dtrun_named_operation operation = dtrun_named_operation_of(17);
          dtrun_named_work* work = nullptr;
          ExpectError(
              dtrun_named_submit(queue, &operation, &tensor, 1, &work),
              "1: named operation 17 does not exist");
          operation.kind = DTRUN_NAMED_ALL_REDUCE;
          ExpectError(
              dtrun_named_submit(queue, &operation, &tensor, 1, &work),
              "1: the name of a tensor is NULL");
          ExpectError(
              dtrun_named_submit(queue, &operation, nullptr, 0, &work),
              "1: a group has no tensors; expected one at least");
          tensor.name = "x";
          ExpectError(
              dtrun_named_submit(nullptr, &operation, &tensor, 1, &work), "1: queue is NULL");
          ExpectError(dtrun_named_submit(queue, &operation, &tensor, 1, &work), "");
          ExpectError(dtrun_named_work_wait(work), "");
          ExpectError(
              dtrun_named_work_result(work, 1, nullptr, nullptr, nullptr),
              "1: tensor 1 does not exist; the work has 1");
          const uint64_t* splits = nullptr;
          ExpectError(
              dtrun_named_work_received_splits(work, 0, &splits), "1: the work is no all_to_all");
          int32_t rank = 0;
          ExpectError(
              dtrun_named_work_last_joined(work, &rank), "1: the work is not a finished join");
          dtrun_named_work_destroy(work);
          dtrun_named_queue_destroy(queue);
          dtrun_named_queue_destroy(nullptr);
        }) == Nothing(1));
}

// The results that a callback has got.
struct Told {
  std::atomic<int> calls{0};
  std::string error;
  std::vector<float> result;
};

void Tell(void* argument, const dtrun_named_work* work, const dtrun_error* error) {
  auto& told = *static_cast<Told*>(argument);
  if (error != nullptr) told.error = dtrun_error_message(error);
  dtrun_buffer result;
  dtrun_error* none = dtrun_named_work_result(work, 0, &result, nullptr, nullptr);
  if (none == nullptr) {
    const auto* first = static_cast<const float*>(result.data);
    told.result.assign(first, first + result.count);
  }
  dtrun_error_destroy(none);
  ++told.calls;
}

TEST_CASE("a callback gets the result or the error once before the wait ends") {
  CHECK(OnRanks(2, [](PublicRank& r) {
          dtrun::NamedQueue queue(r.world);
          std::vector<float> good = {1}, bad = {1, 2};
          Told told_good, told_bad;
          dtrun::NamedWork one = queue.Submit(
              DTRUN_NAMED_ALL_GATHER, {QueuedTensor::Flat("good", Buffer(good.data(), 1))}, {},
              Tell, &told_good);
          const auto n = static_cast<uint64_t>(1 + r.world.rank());
          dtrun::NamedWork two = queue.Submit(
              DTRUN_NAMED_ALL_REDUCE, {QueuedTensor::Flat("bad", Buffer(bad.data(), n))}, {}, Tell,
              &told_bad);
          one.Wait();
          std::string error;
          try {
            two.Wait();
          } catch (const Error& thrown) {
            error = thrown.what();
          }
          // The callbacks ran on the thread of the rank.
          Expect(told_good.calls == 1 && told_good.error.empty(), "called with the result");
          Expect(told_good.result == std::vector<float>{1, 1}, "the result");
          Expect(
              told_bad.calls == 1 && told_bad.error == error && !error.empty(),
              "called with the error");
          Expect(told_bad.result.empty(), "no result");
        }) == Nothing(2));
}

TEST_CASE("several threads of a rank may submit and wait at the same time") {
  CHECK(OnRanks(2, [](PublicRank& r) {
          dtrun::NamedQueue queue(r.world);
          std::atomic<int> wrong{0};
          std::vector<std::thread> threads;
          for (int t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
              for (int step = 0; step < 100; ++step) {
                std::vector<float> values(static_cast<size_t>(10 + t), static_cast<float>(step));
                dtrun::NamedWork work = queue.AllReduce(
                    "of thread " + std::to_string(t), Buffer(values.data(), values.size()));
                work.Wait();
                if (values.back() != static_cast<float>(2 * step)) ++wrong;
              }
            });
          }
          for (std::thread& thread : threads) thread.join();
          Expect(wrong == 0, "all sums");
        }) == Nothing(2));
}

// --- cost ---------------------------------------------------------------------------------------

class Counter : public ops::OperationObserver {
 public:
  void Started(uint64_t, const ops::Operation&, base::TimePoint) override { ++started; }
  void Ended(uint64_t, base::TimePoint, base::TimePoint, bool) override {}
  std::atomic<int> started{0};
};

// A rank announces its tensors in a collective, so the number of collectives is the cost.
TEST_CASE(
    "a step takes one small collective for the agreement and one for the data at any number of "
    "ranks") {
  const int size = GENERATE(2, 3, 8, 16, 64);
  const int tensors = GENERATE(1, 100);
  CHECK(OnRanks(size, [tensors](PublicRank& r) {
          dtrun::NamedQueue queue(r.world);
          const auto counter = std::make_shared<Counter>();
          std::vector<std::vector<float>> values(
              static_cast<size_t>(tensors), std::vector<float>(8, 1));
          std::vector<QueuedTensor> group;
          for (size_t i = 0; i < values.size(); ++i)
            group.push_back(
                QueuedTensor::Flat("t" + std::to_string(i), Buffer(values[i].data(), 8)));
          queue.AllReduce(group).Wait();  // the names are new
          r.world.Barrier();
          r.engine.SetObserver(counter);
          constexpr int kSteps = 10;
          for (int step = 0; step < kSteps; ++step) queue.AllReduce(group).Wait();
          r.engine.SetObserver(nullptr);
          Expect(
              counter->started == 2 * kSteps,
              base::Text(counter->started.load(), " collectives in ", kSteps, " steps"));
        }) == Nothing(size));
}

}  // namespace
}  // namespace dtrun::testing
