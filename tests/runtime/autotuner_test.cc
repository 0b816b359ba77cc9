// The autotuner on synthetic step times. Ranks are threads, and files are real.

#include "runtime/reducer/autotuner.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <mutex>
#include <sstream>

#include "base/process.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "ops/engine/progress_engine.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"
#include "tests/support/subprocess.h"
#include "tests/support/thread_ranks.h"

namespace {

using Catch::Matchers::Contains;
using dtrun::ops::Communicator;
using dtrun::ops::Route;
using dtrun::ops::WireDType;
using dtrun::runtime::AutotuneOptions;
using dtrun::runtime::Autotuner;
using dtrun::runtime::Tuning;
using dtrun::runtime::TuningBox;
using dtrun::testing::TemporaryFolder;

// A world of one rank that still has a choice of routes.
class RoutedCommunicator : public Communicator {
 public:
  RoutedCommunicator()
      : Communicator(dtrun::ops::Members::World(1)),
        self_(dtrun::ops::CreateSelfCommunicator(members())) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const char* backend() const override { return "routed"; }
  std::optional<Route> route() const override { return route_; }
  void SetRoute(const Route& route) override { route_ = route; }
  std::unique_ptr<dtrun::ops::Memory> Allocate(uint64_t bytes) override {
    return self_->Allocate(bytes);
  }
  std::unique_ptr<Communicator> Create(
      dtrun::ops::Bootstrap&, const std::vector<int>&, dtrun::ops::Members) override {
    return std::make_unique<RoutedCommunicator>();
  }

 protected:
  dtrun::ops::Work StartChecked(dtrun::ops::Collective collective) override {
    return self_->Start(std::move(collective));
  }

 private:
  std::unique_ptr<Communicator> self_;
  Route route_;
};

const Tuning kDefaults{.bucket_bytes = 4 << 20, .route = {}};

dtrun::base::Duration Milliseconds(double ms) {
  return std::chrono::duration_cast<dtrun::base::Duration>(
      std::chrono::duration<double, std::milli>(ms));
}

// The step time on a link where 1 MiB buckets, chunks of 512 KiB, a flat route and a bf16 wire are
// the fastest.
double StepMs(const Tuning& tuning) {
  double ms = 10;
  if (tuning.bucket_bytes != 1 << 20) ms += 3;
  if (!tuning.route.flat) ms += 2;
  if (tuning.route.chunk_bytes != 512 << 10) ms += 1;
  if (tuning.route.wire != WireDType::kBF16) ms += 4;
  return ms;
}

// Does steps until the tuner is frozen. Returns the number of steps.
uint64_t Tune(Autotuner& tuner) {
  uint64_t steps = 0;
  for (; !tuner.frozen(); ++steps) {
    REQUIRE(steps < 10'000);
    tuner.EndStep(Milliseconds(StepMs(tuner.tuning())));
  }
  return steps;
}

std::vector<std::string> LinesOf(const std::string& file) {
  std::ifstream text(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("the tuning box has the defaults and stays within its limits") {
  for (const uint64_t bucket :
       {uint64_t{1}, uint64_t{100'000}, uint64_t{4} << 20, uint64_t{1} << 40})
    for (const bool routes : {false, true}) {
      const Tuning defaults{.bucket_bytes = bucket, .route = {.wire = WireDType::kF16}};
      size_t choices = 0;
      for (const auto& dimension : TuningBox(defaults, routes, true)) {
        REQUIRE(dimension.start < dimension.values.size());
        choices += dimension.values.size() > 1;
        if (dimension.name == "bucket_bytes") {
          CHECK(dimension.values[dimension.start] == bucket);
          for (const uint64_t value : dimension.values)
            CHECK((value == bucket || (value >= 64 << 10 && value <= 64 << 20)));
        }
      }
      CHECK(choices >= (routes ? 3 : 0));
    }
}

TEST_CASE("the tuner finds the fastest settings and then keeps them") {
  RoutedCommunicator communicator;
  Autotuner tuner(communicator, kDefaults, "a model", {.tune_wire = true});
  CHECK(tuner.tuning() == kDefaults);
  const uint64_t expected = tuner.step_count();
  CHECK(Tune(tuner) == expected);
  const Tuning best{1 << 20, {.wire = WireDType::kBF16, .chunk_bytes = 512 << 10, .flat = true}};
  CHECK(tuner.tuning() == best);
  CHECK_FALSE(tuner.EndStep(Milliseconds(1)));
  CHECK(tuner.tuning() == best);
}

TEST_CASE("the first step of a trial does not count and rounding stays off by default") {
  RoutedCommunicator communicator;
  Autotuner tuner(communicator, kDefaults, "a model", {});
  bool settled = true;
  for (int step = 0; !tuner.frozen(); ++step) {
    // The first step after a change is slow, as with cold caches.
    const double ms = StepMs(tuner.tuning()) + (settled ? 0 : 50);
    settled = !tuner.EndStep(Milliseconds(ms));
    CHECK(tuner.tuning().route.wire == WireDType::kNone);
    if (step < 4) CHECK(tuner.tuning() == kDefaults);
  }
  CHECK(tuner.tuning() == Tuning{1 << 20, {.chunk_bytes = 512 << 10, .flat = true}});
}

TEST_CASE("ranks with different step times get the same result") {
  std::mutex mutex;
  std::vector<uint64_t> found;
  const dtrun::base::SteadyClock clock;
  const auto errors = dtrun::testing::RunRanks(3, [&](dtrun::ops::Bootstrap& bootstrap) {
    dtrun::ops::Engine engine({.may_spin = false}, clock, [](auto, const auto&) {});
    const auto comm =
        dtrun::ops::CreateShmCommunicator(bootstrap, engine, dtrun::ops::Members::World(3));
    Autotuner tuner(*comm, kDefaults, "a model", {});
    while (!tuner.frozen()) {
      // The ranks prefer different buckets. The slowest rank decides.
      const uint64_t liked = comm->rank() == 0 ? 512 << 10 : 8 << 20;
      const double slowness = comm->rank() == 2 ? 100 : 1;
      tuner.EndStep(Milliseconds(slowness * (tuner.tuning().bucket_bytes == liked ? 1 : 2)));
    }
    const std::lock_guard lock(mutex);
    found.push_back(tuner.tuning().bucket_bytes);
  });
  CHECK(errors == std::vector<std::string>(3));
  CHECK(found == std::vector<uint64_t>(3, 8 << 20));
}

TEST_CASE("the log has a line per trial") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/log.csv";
  RoutedCommunicator communicator;
  Autotuner tuner(communicator, kDefaults, "a model", {.log_file = file});
  const uint64_t steps = Tune(tuner);
  const auto lines = LinesOf(file);
  REQUIRE(lines.size() == 2 + (steps - 5) / 2);
  CHECK(lines[0] == "step,state,bucket_bytes,path,chunk_bytes,wire,seconds");
  CHECK(lines[1] == "7,trial,4194304,hierarchical,2097152,none,0.02");
  CHECK(lines.back() == dtrun::base::Text(steps, ",frozen,1048576,flat,524288,none,0.014"));
}

TEST_CASE("a cached result is used only for its topology and model") {
  const TemporaryFolder folder;
  const AutotuneOptions options{.cache_file = folder.path() + "/cache.json"};
  RoutedCommunicator communicator;
  Autotuner first(communicator, kDefaults, "a model", options);
  Tune(first);
  Autotuner again(communicator, kDefaults, "a model", options);
  CHECK(again.frozen());
  CHECK(again.tuning() == first.tuning());
  Autotuner other(communicator, kDefaults, "another model", options);
  CHECK_FALSE(other.frozen());
  Tune(other);
  CHECK(Autotuner(communicator, kDefaults, "a model", options).frozen());
  CHECK(Autotuner(communicator, kDefaults, "another model", options).frozen());
}

TEST_CASE("a cached result with a wire type is not used if rounding is not allowed") {
  const TemporaryFolder folder;
  AutotuneOptions options{.cache_file = folder.path() + "/cache.json", .tune_wire = true};
  RoutedCommunicator communicator;
  Autotuner first(communicator, kDefaults, "a model", options);
  Tune(first);
  options.tune_wire = false;
  CHECK_FALSE(Autotuner(communicator, kDefaults, "a model", options).frozen());
}

TEST_CASE("unusable files are named before the first step") {
  const TemporaryFolder folder;
  RoutedCommunicator communicator;
  const auto error = [&](const AutotuneOptions& options) -> std::string {
    try {
      Autotuner(communicator, kDefaults, "a model", options);
    } catch (const dtrun::Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK_THAT(
      error({.log_file = "/no/such/log"}),
      Contains("/no/such/log") && Contains("No such file or directory"));
  CHECK_THAT(error({.cache_file = "/no/such/cache"}), Contains("/no/such/cache"));
  for (const char* text :
       {"not JSON", "[1]", "{\"1 ranks, routed, a model\": 7}",
        "{\"1 ranks, routed, a model\": {\"wire\": 9, \"flat\": 0, "
        "\"bucket_bytes\": 1, \"chunk_bytes\": 1}}"}) {
    CAPTURE(text);
    CHECK_THAT(
        error({.cache_file = folder.Write("cache", text)}),
        Contains("holds no results of autotune") && Contains("remove the file"));
  }
}

}  // namespace
