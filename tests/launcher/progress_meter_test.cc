#include <catch2/catch.hpp>
#include <string>

#include "launcher/job/job_terminal.h"

namespace dtrun::launcher {
namespace {

using std::chrono::milliseconds;

std::chrono::steady_clock::time_point At(double seconds) {
  return std::chrono::steady_clock::time_point(
      milliseconds(static_cast<int64_t>(100'000 + seconds * 1000)));
}

// `waits`: the share of the time until `seconds` in which the rank waited.
base::FlightProgress Progress(
    int rank, uint64_t step, uint64_t examples, double waits, double seconds) {
  return {rank, step, examples, static_cast<int64_t>(waits * seconds * 1e9)};
}

// Adds 10 steps of 32 examples every second, for `seconds` seconds.
void AddSteady(ProgressMeter& meter, int rank, double waits, int seconds = 4) {
  for (int s = 0; s <= seconds; ++s) {
    const auto step = static_cast<uint64_t>(10 * s);
    meter.Add(Progress(rank, step, 32 * step, waits, s), At(s));
  }
}

TEST_CASE("before any progress only the number of running ranks is known") {
  CHECK(ProgressMeter().Line(1) == "1 rank running");
  CHECK(ProgressMeter().Line(64) == "64 ranks running");
}

TEST_CASE("one sample gives the step and two samples give a rate") {
  ProgressMeter meter;
  meter.Add(Progress(0, 5, 0, 0, 1), At(1));
  CHECK(meter.Line(1) == "1 rank running, step 5");
  meter.Add(Progress(0, 10, 0, 0, 3), At(3));
  CHECK(meter.Line(1) == "1 rank running, step 10 (2.5/s)");
}

TEST_CASE("examples are summed over all ranks and a step counts when all ranks have done it") {
  ProgressMeter meter;
  AddSteady(meter, 0, 0.5);
  AddSteady(meter, 1, 0.5);
  CHECK(meter.Line(2) == "2 ranks running, step 40 (10.0/s), 640 examples/s");
  meter.Add(Progress(1, 41, 41 * 32, 0.5, 4.5), At(4.5));
  CHECK(meter.Line(2).starts_with("2 ranks running, step 40 ("));
}

TEST_CASE("rates cover only the last seconds") {
  ProgressMeter meter;
  AddSteady(meter, 0, 0);
  for (int s = 5; s <= 30; ++s) meter.Add(Progress(0, 40, 0, 0, s), At(s));
  CHECK(meter.Line(1) == "1 rank running, step 40 (0.0/s)");
}

TEST_CASE("the slowest rank waits least and is named only if the difference is clear") {
  const auto line = [](double first, double second, double third) {
    ProgressMeter meter;
    AddSteady(meter, 0, first);
    AddSteady(meter, 1, second);
    AddSteady(meter, 2, third);
    return meter.Line(3);
  };
  CHECK_THAT(
      line(0.6, 0.01, 0.8),
      Catch::EndsWith(", slowest rank 1 (waits 1 % of the time, the others 60 % and more)"));
  CHECK_THAT(line(0.2, 0.25, 0.8), Catch::EndsWith("examples/s"));
  CHECK_THAT(line(0.1, 0.1, 0.9), Catch::EndsWith("examples/s"));
}

TEST_CASE("a rank without steps is not called slow") {
  ProgressMeter meter;
  for (int s = 0; s < 4; ++s) {
    meter.Add(Progress(0, 7, 0, 0.9, s), At(s));
    meter.Add(Progress(1, 7, 0, 0.0, s), At(s));
  }
  CHECK(meter.Line(2) == "2 ranks running, step 7 (0.0/s)");
}

TEST_CASE("if a program counts its steps anew then the rate is unknown at first") {
  ProgressMeter meter;
  AddSteady(meter, 0, 0);
  meter.Add(Progress(0, 1, 32, 0, 5), At(5));
  CHECK(meter.Line(1) == "1 rank running, step 1");
}

}  // namespace
}  // namespace dtrun::launcher
