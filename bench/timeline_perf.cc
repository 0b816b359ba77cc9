// The cost of a timeline for a step: the step time with and without a timeline, alternately in the
// same processes. A step computes for a while between the gradients, as backward does. It marks
// each gradient and waits for all. Run it under dtrun or mpirun.

#include <dtrun/context.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "bench/model_shapes.h"

namespace programs::timeline_perf {
namespace {

using dtrun::bench::Shape;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct Settings {
  int least_rounds = 31;
  int compute_us = 20'000;  // of a step with computation
};

struct Case {
  const char* model;
  std::vector<Shape> shapes;
  int compute_us, steps;  // of a step; in a round
};

class Steps {
 public:
  Steps(dtrun::Context& job, const Case& measured)
      : job_(job), measured_(measured), reducer_(job.world(), GradientsOf(measured.shapes)) {}

  // Microseconds of a step.
  double Time() {
    job_.world().Barrier();
    const auto begin = Clock::now();
    for (int step = 0; step < measured_.steps; ++step) TakeOne();
    const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
    return took.count() / measured_.steps;
  }

 private:
  static std::vector<dtrun::Gradient> GradientsOf(const std::vector<Shape>& shapes) {
    std::vector<dtrun::Gradient> gradients;
    for (const Shape& shape : shapes)
      gradients.push_back({shape.name, dtrun::Buffer(nullptr, shape.count, dtrun::DType::kF32)});
    return gradients;
  }

  void TakeOne() {
    const auto begin = Clock::now();
    const size_t count = measured_.shapes.size();
    for (size_t i = count; i-- > 0;) {
      // Each gradient is ready at its time.
      const auto due = begin + std::chrono::nanoseconds(
                                   int64_t{measured_.compute_us} * 1000 *
                                   static_cast<int64_t>(count - i) / static_cast<int64_t>(count));
      while (measured_.compute_us > 0 && Clock::now() < due) {
      }
      reducer_.MarkReady(i);
    }
    reducer_.Wait();
  }

  dtrun::Context& job_;
  Case measured_;
  dtrun::GradientReducer reducer_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

json Measure(dtrun::Context& job, const Settings& settings, const Case& measured) {
  Steps steps(job, measured);
  const std::string file =
      std::filesystem::temp_directory_path() / ("dtrun_timeline_perf." + std::to_string(getpid()));
  std::vector<double> on, off, differences;
  for (int round = 0; round < settings.least_rounds; ++round) {
    off.push_back(steps.Time());
    job.StartTimeline(file);
    on.push_back(steps.Time());
    job.StopTimeline();
    differences.push_back(on.back() - off.back());
  }
  std::filesystem::remove(file);
  return {
      {"case", measured.model},
      {"ranks", job.size()},
      {"gradients", measured.shapes.size()},
      {"compute_us", measured.compute_us},
      {"off_us", Median(off)},
      {"on_us", Median(on)},
      {"difference_us", Median(differences)},
      {"share", Median(differences) / Median(off)},
      {"wrong", 0}};
}

json MeasureAll(dtrun::Context& job, const Settings& settings) {
  const Case cases[] = {
      {"resnet50", dtrun::bench::ResNet50(), 0, 20},
      {"resnet50", dtrun::bench::ResNet50(), settings.compute_us, 5},
      {"thousand", dtrun::bench::Equal(1000, 256), 0, 100},
      {"thousand", dtrun::bench::Equal(1000, 256), settings.compute_us, 5},
  };
  if (job.rank() == 0)
    std::printf(
        "%-10s %10s %11s %12s %12s %14s %8s\n", "case", "gradients", "compute us", "off us",
        "on us", "difference us", "share");
  json rows = json::array();
  for (const Case& measured : cases) {
    rows.push_back(Measure(job, settings, measured));
    const json& row = rows.back();
    if (job.rank() != 0) continue;
    std::printf(
        "%-10s %10zu %11d %12.1f %12.1f %14.2f %7.2f%%\n", measured.model, measured.shapes.size(),
        measured.compute_us, row["off_us"].get<double>(), row["on_us"].get<double>(),
        row["difference_us"].get<double>(), 100 * row["share"].get<double>());
    std::fflush(stdout);
  }
  return rows;
}

}  // namespace

using dtrun::bench::OptionSet;
using dtrun::bench::Range;

int Main(int argc, char** argv) {
  Settings settings;
  OptionSet options("What a timeline costs a step.", "timeline_perf");
  options.Add("--rounds", &settings.least_rounds, "rounds of both, at least", Range<int>{1, 10000});
  options.Add(
      "--compute-us", &settings.compute_us, "what a step computes that does",
      Range<int>{1, 10'000'000});
  return dtrun::bench::Main(
      options,
      {"timeline_perf", [&](dtrun::Context& job) { return MeasureAll(job, settings); },
       [](dtrun::Context&) { return std::string(); }},
      argc, argv);
}

}  // namespace programs::timeline_perf
