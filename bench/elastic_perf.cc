// The cost of Elastic's copies of a sharded optimizer for a step: steps of an optimizer that is
// kept and of one that is not, in turn in the same processes. A step computes for a while, then
// updates its share with Adam. Run it under dtrun, on one host or on several.

#include <dtrun/context.h>
#include <dtrun/elastic.h>
#include <dtrun/optimizer.h>
#include <dtrun/sharded_optimizer.h>
#include <dtrun/sliceable_optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "bench/benchmark.h"

namespace programs::elastic_perf {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  int parameters = 30'000'000;
  int compute_ms = 1000;
  int every = 1, rounds = 9, steps = 4;
};

class Adam : public dtrun::SliceableOptimizer {
 public:
  explicit Adam(size_t count) : values_(count) {
    list_.push_back({"weights", {values_.data(), count}, {nullptr, count, dtrun::DType::kF32}});
  }
  std::vector<dtrun::Parameter>& parameters() override { return list_; }
  std::vector<dtrun::StateSlot> slots() const override { return {{"mean"}, {"variance"}}; }
  void StepSlice(const dtrun::ParameterSlice& slice) override {
    const auto* gradient = static_cast<const float*>(slice.gradient);
    auto* value = static_cast<float*>(slice.value);
    auto *mean = static_cast<float*>(slice.slots[0]),
         *variance = static_cast<float*>(slice.slots[1]);
    for (uint64_t k = 0; k < slice.count; ++k) {
      mean[k] += 0.1f * (gradient[k] - mean[k]);
      variance[k] += 0.001f * (gradient[k] * gradient[k] - variance[k]);
      value[k] -= 0.001f * mean[k] / (std::sqrt(variance[k]) + 1e-8f);
    }
  }

 private:
  std::vector<float> values_;
  std::vector<dtrun::Parameter> list_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Training {
 public:
  Training(
      const Settings& settings, dtrun::Context& job, dtrun::Elastic& elastic, Adam& kept,
      Adam& plain)
      : settings_(settings),
        job_(job),
        elastic_(elastic),
        kept_(job.world(), kept),
        plain_(job.world(), plain) {
    elastic.Keep(kept_, static_cast<uint64_t>(settings.every));
  }

  void Measure() {
    std::vector<double> without, with, shares;
    for (int round = 0; round < settings_.rounds; ++round) {
      kept_.Step();  // waits for copies
      Steps(plain_, 1, false);
      without.push_back(Steps(plain_, settings_.steps, false));
      Steps(kept_, settings_.every, true);
      with.push_back(Steps(kept_, settings_.steps * settings_.every, true));
      shares.push_back(with.back() / without.back() - 1);
    }
    const dtrun::Elastic::Copies copies = elastic_.copies();
    const double snaps = settings_.rounds * (settings_.steps + 1.0);
    if (job_.rank() != 0) return;
    std::printf(
        "%d ranks on %d hosts, %.0f MB of state, copies after every %d. step\n"
        "step without copies %.1f ms, with copies %.1f ms, median of the pairs %+.2f %%\n"
        "rank 0: %.0f MB held, %.0f MB sent, %.1f ms to pack and %.1f ms to wait for each copy\n",
        job_.size(), job_.cross_size(), 8e-6 * settings_.parameters, settings_.every,
        1e3 * Median(without), 1e3 * Median(with), 100 * Median(shares),
        1e-6 * static_cast<double>(copies.held_bytes),
        1e-6 * static_cast<double>(copies.copy_bytes), 1e3 * copies.pack_s / snaps,
        1e3 * copies.wait_s / snaps);
  }

 private:
  // Seconds of a step.
  double Steps(dtrun::ShardedOptimizer& optimizer, int count, bool ends) {
    job_.world().Barrier();
    const Clock::time_point began = Clock::now();
    for (int step = 0; step < count; ++step) {
      const Clock::time_point until =
          Clock::now() + std::chrono::milliseconds(settings_.compute_ms);
      while (Clock::now() < until) {
      }
      optimizer.Step();
      if (ends) elastic_.EndStep();
    }
    return std::chrono::duration<double>(Clock::now() - began).count() / count;
  }

  Settings settings_;
  dtrun::Context& job_;
  dtrun::Elastic& elastic_;
  dtrun::ShardedOptimizer kept_, plain_;
};

}  // namespace

int Main(int argc, char** argv) {
  using dtrun::bench::Range;
  Settings settings;
  dtrun::bench::OptionSet options(
      "What the copies of a sharded optimizer cost a step.", "elastic_perf");
  options.Add("--parameters", &settings.parameters, "of the model", Range<int>{1, 1'000'000'000});
  options.Add("--compute-ms", &settings.compute_ms, "of a step", Range<int>{0, 1'000'000});
  options.Add("--every", &settings.every, "steps between two copies", Range<int>{1, 1000});
  options.Add("--rounds", &settings.rounds, "pairs of measurements", Range<int>{1, 1000});
  if (const auto status = options.Parse(argc, argv)) return *status == 0 ? 0 : 2;
  try {
    const auto count = static_cast<size_t>(settings.parameters);
    Adam kept(count), plain(count);
    dtrun::Elastic elastic;
    elastic.Run(
        [&](dtrun::Context& job) { Training(settings, job, elastic, kept, plain).Measure(); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "elastic_perf: %s\n", error.what());
    return 2;
  }
  return 0;
}

}  // namespace programs::elastic_perf
