// The exposed time of a reduction that runs beside the backward pass. The pass is a sleep in which
// gradients of equal size become ready one after the other. The exposed time is the time beyond the
// pass, until the last rank has all results. Run it under dtrun, on hosts with limited links:
// within a host there is little to hide.
//
//   reduction   all gradients are ready at once
//   after       the pass, then the reduction: a trainer that reduces after backward has ended
//   overlapped  each gradient is marked when it is ready
//
// All modes alternate, and the pass alone with them.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/bench_program.h"
#include "bench/measure.h"
#include "bench/model_shapes.h"

namespace programs::overlap_perf {
namespace {

using nlohmann::json;

struct Settings {
  int gradients = 100;
  double compute_ms = 20;
  double reduction_ms = 10;
  uint64_t bytes = 0;
  double bucket_mb = 0;
  int least_rounds = 25;
};

class Step {
 public:
  Step(dtrun::Communicator& comm, const Settings& settings, uint64_t elements)
      : comm_(comm),
        count_(static_cast<size_t>(settings.gradients)),
        compute_(settings.compute_ms / 1e3),
        reducer_(comm, GradientsOf(count_, elements), OptionsOf(settings)) {}

  void Compute() { Backward(false); }
  void Overlapped() {
    Backward(true);
    reducer_.Wait();
  }
  void Reduction() {
    for (size_t i = count_; i-- > 0;) reducer_.MarkReady(i);
    reducer_.Wait();
  }
  void After() {
    Compute();
    Reduction();
  }

  // Makes an overlapped step and returns the number of elements that are not the average over the
  // ranks.
  uint64_t Wrong() {
    Fill();
    Overlapped();
    uint64_t wrong = 0;
    for (size_t i = 0; i < count_; ++i) {
      const dtrun::Buffer gradient = reducer_.gradient(i);
      const float average = static_cast<float>(i + 1) * static_cast<float>(comm_.size() + 1) / 2;
      for (uint64_t k = 0; k < gradient.count; ++k)
        wrong += static_cast<const float*>(gradient.data)[k] != average;
    }
    comm_.AllReduce(dtrun::Buffer(&wrong, 1), dtrun::ReduceOp::kSum);
    return wrong;
  }

 private:
  static std::vector<dtrun::Gradient> GradientsOf(size_t count, uint64_t elements) {
    std::vector<dtrun::Gradient> gradients;
    for (const auto& shape : dtrun::bench::Equal(static_cast<int>(count), elements))
      gradients.push_back({shape.name, dtrun::Buffer(nullptr, shape.count, dtrun::DType::kF32)});
    return gradients;
  }

  static dtrun::ReducerOptions OptionsOf(const Settings& settings) {
    dtrun::ReducerOptions options;
    options.bucket_bytes = static_cast<uint64_t>(settings.bucket_mb * (1 << 20));
    return options;
  }

  // Gradients become ready from the last layer to the first, at fixed times. So a late wake-up does
  // not delay later gradients.
  void Backward(bool marks) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = count_; i-- > 0;) {
      const double share = static_cast<double>(count_ - i) / static_cast<double>(count_);
      std::this_thread::sleep_until(
          start +
          std::chrono::duration_cast<std::chrono::steady_clock::duration>(compute_ * share));
      if (marks) reducer_.MarkReady(i);
    }
  }

  void Fill() {
    for (size_t i = 0; i < count_; ++i) {
      const dtrun::Buffer gradient = reducer_.gradient(i);
      std::fill_n(
          static_cast<float*>(gradient.data), gradient.count,
          static_cast<float>((i + 1) * static_cast<size_t>(comm_.rank() + 1)));
    }
  }

  dtrun::Communicator& comm_;
  size_t count_;
  std::chrono::duration<double> compute_;
  dtrun::GradientReducer reducer_;
};

// The number of elements per gradient with which the reduction takes `reduction_ms`. Collective.
uint64_t FitElements(dtrun::Communicator& comm, const Settings& settings) {
  constexpr uint64_t kLeast = 16, kMost = 16 << 20;
  uint64_t elements = 1024;
  for (int tries = 0; tries < 10; ++tries) {
    Step step(comm, settings, elements);
    // A pause precedes each reduction, as in the measurement. A limited link may save unused
    // capacity for later.
    const double us = dtrun::bench::MeasureInTurn(
        comm, {[&] { step.Compute(); }, [&] { step.Reduction(); }}, 9)[1];
    const double factor = settings.reduction_ms * 1e3 / us;
    if (std::abs(factor - 1) < 0.03) break;
    elements = static_cast<uint64_t>(
        std::clamp(static_cast<double>(elements) * factor, double{kLeast}, double{kMost}));
    comm.Broadcast(dtrun::Buffer(&elements, 1), 0);
  }
  return elements;
}

json Measure(dtrun::Context& job, const Settings& settings) {
  dtrun::Communicator& comm = job.world();
  const auto gradients = static_cast<uint64_t>(settings.gradients);
  const uint64_t elements =
      settings.bytes > 0 ? settings.bytes / sizeof(float) / gradients : FitElements(comm, settings);
  Step step(comm, settings, elements);
  const uint64_t wrong = step.Wrong();
  const std::vector<double> us = dtrun::bench::MeasureInTurn(
      comm,
      {[&] { step.Compute(); }, [&] { step.Reduction(); }, [&] { step.After(); },
       [&] { step.Overlapped(); }},
      settings.least_rounds);
  return {
      {"gradients", gradients},
      {"ranks", comm.size()},
      {"bytes", gradients * elements * sizeof(float)},
      {"compute_us", us[0]},
      {"reduction_us", us[1]},
      {"exposed_after_us", us[2] - us[0]},
      {"exposed_us", us[3] - us[0]},
      {"exposed_share", (us[3] - us[0]) / (us[2] - us[0])},
      {"wrong", wrong}};
}

json MeasureAndPrint(dtrun::Context& job, const Settings& settings) {
  const json row = Measure(job, settings);
  if (job.rank() == 0) {
    std::printf("# %d ranks, backend %s\n", job.size(), job.world().backend().c_str());
    std::printf(
        "%9s %12s %12s %12s %12s %12s %8s %6s\n", "gradients", "bytes", "compute us",
        "reduction us", "after us", "exposed us", "share", "wrong");
    std::printf(
        "%9lld %12lld %12.0f %12.0f %12.0f %12.0f %8.2f %6lld\n", row["gradients"].get<long long>(),
        row["bytes"].get<long long>(), row["compute_us"].get<double>(),
        row["reduction_us"].get<double>(), row["exposed_after_us"].get<double>(),
        row["exposed_us"].get<double>(), row["exposed_share"].get<double>(),
        row["wrong"].get<long long>());
  }
  return json::array({row});
}

}  // namespace

using dtrun::bench::Default;
using dtrun::bench::OptionSet;
using dtrun::bench::Range;

int Main(int argc, char** argv) {
  Settings settings;
  OptionSet options("How much of a reduction a step waits for.", "overlap_perf");
  options.Add(
      "--gradients", &settings.gradients, "how many, of equal size", Range<int>{1, 100'000});
  options.Add(
      "--compute-ms", &settings.compute_ms, "how long they take to become ready",
      Range<double>{0.0, 1e5});
  options.Add(
      "--reduction-ms", &settings.reduction_ms, "so large that their reduction takes this",
      Range<double>{0.1, 1e5});
  options.Add(
      "--bytes", &settings.bytes, "so large together, instead",
      Range<uint64_t>{4, uint64_t{1} << 36}, Default::kHidden);
  options.Add(
      "--bucket-mb", &settings.bucket_mb, "MiB of a bucket, instead of the default",
      Range<double>{0.001, 4096.0}, Default::kHidden);
  options.Add(
      "--rounds", &settings.least_rounds, "timed rounds of each side, at least",
      Range<int>{1, 10'000});
  return dtrun::bench::Main(
      options,
      {"overlap_perf", [&](dtrun::Context& job) { return MeasureAndPrint(job, settings); },
       dtrun::bench::ObstacleBesideMpi},
      argc, argv);
}

}  // namespace programs::overlap_perf
