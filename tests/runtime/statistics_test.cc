// The step statistics of a reducer and a DistributedOptimizer.

#include <dtrun/distributed_optimizer.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ops/engine/flight_recorder.h"
#include "ops/engine/progress_engine.h"
#include "ops/shm/shm_communicator.h"
#include "runtime/c_api/handles.h"
#include "runtime/timeline/job_timeline.h"
#include "tests/support/manual_clock.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {
namespace {

using runtime::StepMeter;
using std::chrono::milliseconds;

constexpr int64_t kMs = 1'000'000;  // ns

TEST_CASE("a step lasts from wait to wait and time outside of the reducer is computation") {
  ManualClock clock;
  StepMeter meter(clock);
  clock.Advance(milliseconds(5));
  {
    const StepMeter::Scope mark(meter);
    clock.Advance(milliseconds(1));
  }
  clock.Advance(milliseconds(3));
  {
    const StepMeter::Scope wait(meter);
    const StepMeter::Scope counts_once(meter);
    meter.AddBucket(64);
    meter.lateness().total += milliseconds(1);
    clock.Advance(milliseconds(2));
  }
  meter.EndStep();
  CHECK(
      meter.last() == base::StepTotals{
                          .steps = 1,
                          .total_ns = 11 * kMs,
                          .exposed_ns = 3 * kMs,
                          .late_ns = 1 * kMs,
                          .bytes = 64,
                          .buckets = 1});
  clock.Advance(milliseconds(7));
  {
    const StepMeter::Scope wait(meter);
    clock.Advance(milliseconds(1));
  }
  meter.EndStep();
  CHECK(meter.last() == base::StepTotals{.steps = 1, .total_ns = 8 * kMs, .exposed_ns = kMs});
  CHECK(meter.total().steps == 2);
  CHECK(meter.total().total_ns == 19 * kMs);
  CHECK(meter.total().late_ns == kMs);
}

TEST_CASE("a wait is charged to each missing rank for the time that it is missing") {
  const base::TimePoint begin{};
  ops::ArrivalWatch watch(begin, {1, 3});
  watch.Look(begin + milliseconds(10), {3});
  watch.End(begin + milliseconds(15));
  ops::Lateness sum{.total = milliseconds(1), .by_rank = {milliseconds(1)}};
  watch.AddTo(sum);
  CHECK(sum.total == milliseconds(16));
  CHECK(
      sum.by_rank == std::vector<base::Duration>{
                         milliseconds(1), milliseconds(10), milliseconds(0), milliseconds(15)});
}

struct Rank {
  Communicator& world;
  ops::FlightRecorder& recorder;
};

// Returns the error of each rank, "" if the rank succeeds.
Texts OnRanks(int size, const std::function<void(Rank)>& rank_main) {
  const base::SteadyClock clock;
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    const auto recorder = ops::FlightRecorder::InMemory(bootstrap.rank(), "here");
    ops::Engine engine({.may_spin = false, .recorder = recorder}, clock, [](auto, const auto&) {});
    const auto shm =
        ops::CreateShmCommunicator(bootstrap, engine, ops::Members::World(bootstrap.size()));
    dtrun_communicator handle{{.recorder = recorder.get()}, shm.get(), nullptr, 1024};
    Communicator world(&handle, Communicator::Ownership::kBorrowed);
    rank_main({world, *recorder});
  });
}

TEST_CASE("statistics name the rank that others wait for and count no wait for the rank itself") {
  // Only the large gradient moves its data after all ranks have come.
  const uint64_t count = GENERATE(4, 300'000);
  std::atomic<ops::FlightRecorder*> first{nullptr};
  const Texts errors = OnRanks(3, [&](Rank rank) {
    const int me = rank.world.rank();
    dtrun::GradientReducer reducer(rank.world, {{"g", Buffer(nullptr, count, DType::kF32)}});
    rank.world.Barrier();
    if (me == 0) first = &rank.recorder;
    if (me == 2) ReturnWhenWaitedFor(first);
    reducer.MarkReady(0);
    reducer.Wait();
    const ReducerStatistics statistics = reducer.statistics();
    const StepStatistics& last = statistics.last;
    // A large gradient has its own bucket, and the flags have another.
    Expect(last.steps == 1 && last.buckets == (count == 4 ? 1 : 2), "its buckets");
    Expect(last.bytes >= count * 4, "it was reduced");
    Expect(last.total_s >= last.exposed_s && last.exposed_s >= last.late_s, "parts are parts");
    Expect(last.late_s >= 0, "time goes forward");
    Expect(statistics.late_by_rank_s.size() == 3, "an entry for every rank");
    if (me == 0) {
      Expect(last.late_s > 0, "rank 0 waits");
      Expect(statistics.late_by_rank_s[2] > 0, "for rank 2");
    }
    Expect(statistics.late_by_rank_s[static_cast<size_t>(me)] == 0, "nobody waits for itself");
    rank.world.Barrier();
  });
  CHECK(errors == Texts(3));
}

TEST_CASE("statistics of a world of one rank have three steps and no late rank") {
  CHECK(OnRanks(1, [](Rank rank) {
          std::vector<float> value(8), gradient(8);
          class Nothing : public Optimizer {
           public:
            std::vector<Parameter>& parameters() override { return list; }
            std::vector<NamedBuffer> state() override { return {}; }
            void Step() override {}
            std::vector<Parameter> list;
          } inner;
          inner.list.push_back({"p", Buffer(value.data(), 8), Buffer()});
          DistributedOptimizer optimizer(rank.world, inner);
          for (int step = 0; step < 3; ++step) {
            optimizer.MarkReady(0);
            optimizer.Step();
          }
          const ReducerStatistics statistics = optimizer.statistics();
          Expect(statistics.total.steps == 3 && statistics.last.steps == 1, "three steps");
          Expect(statistics.total.total_s > statistics.last.total_s, "a sum");
          Expect(
              statistics.total.compute_s + statistics.total.exposed_s == statistics.total.total_s ||
                  statistics.total.compute_s > 0,
              "parts of a whole");
          Expect(statistics.late_by_rank_s == std::vector<double>{0}, "nobody is late");
        }) == Texts(1));
}

TEST_CASE("a statistics struct of an unknown length is refused with the expected length") {
  CHECK(OnRanks(1, [](Rank rank) {
          std::vector<dtrun_gradient> gradients(1);
          gradients[0] = {"g", dtrun_host_buffer(nullptr, 4, DTRUN_F32)};
          dtrun_reducer* reducer = nullptr;
          detail::Check(dtrun_reducer_create(
              rank.world.handle(), gradients.data(), 1, DTRUN_SUM, 0, &reducer));
          dtrun_step_statistics statistics{};
          dtrun_error* error = dtrun_reducer_statistics(reducer, nullptr, &statistics);
          const std::string message = dtrun_error_message(error);
          dtrun_error_destroy(error);
          dtrun_reducer_destroy(reducer);
          Expect(
              message ==
                  "struct_bytes of total is 0; expected 56: begin with "
                  "dtrun_new_step_statistics()",
              message);
        }) == Texts(1));
}

}  // namespace
}  // namespace dtrun::testing
