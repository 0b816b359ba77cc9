// The cost of a checkpoint. "save": bytes per second of a synchronous checkpoint, beside a plain
// write and fsync of the same bytes by the same process. "step": the time of steps with an
// asynchronous checkpoint in every round, beside the same steps without a checkpoint, alternately.
// A step is a fixed amount of computation and the reduction of its gradients. The computation takes
// as long as a step of network C at batch 1,024. Run it under dtrun or mpirun.

#include <dtrun/checkpoint.h>
#include <dtrun/context.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/tensors.h>
#include <dtrun/types.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/bench_program.h"

namespace programs::checkpoint_perf {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kParameters = 1'199'882;  // of network C; Adam keeps two numbers for each

struct Settings {
  int rounds = 15;
  int step_ms = 330;  // of network C at batch 1,024 on one core
  int steps = 5;      // of a round, with one checkpoint
  bool sharded = false;
  std::string folder = std::filesystem::temp_directory_path();
};

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The state of a trainer: weights and two moments.
struct State {
  explicit State(uint64_t count) : values(3, std::vector<float>(count, 0.5F)) {}
  std::vector<dtrun::NamedTensor> Tensors() {
    const char* names[] = {"weights", "first_moments", "second_moments"};
    std::vector<dtrun::NamedTensor> tensors;
    for (size_t i = 0; i < values.size(); ++i)
      tensors.emplace_back(names[i], dtrun::Buffer(values[i].data(), values[i].size()));
    return tensors;
  }
  uint64_t bytes() const { return values.size() * values[0].size() * sizeof(float); }

  std::vector<std::vector<float>> values;
};

void WritePlainly(const std::string& path, const State& state) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  bool good = file >= 0;
  for (const std::vector<float>& values : state.values) {
    const auto* data = reinterpret_cast<const char*>(values.data());
    const uint64_t bytes = values.size() * sizeof(float);
    for (uint64_t done = 0; good && done < bytes;) {
      const ssize_t written = ::write(file, data + done, bytes - done);
      good = written > 0;
      if (good) done += static_cast<uint64_t>(written);
    }
  }
  good = good && ::fsync(file) == 0;
  if (file >= 0) good = ::close(file) == 0 && good;
  if (!good) throw std::runtime_error("cannot write '" + path + "'");
}

json MeasureSave(
    dtrun::Context& job, const Settings& settings, const std::string& folder, uint64_t count) {
  State state(count);
  dtrun::CheckpointManager checkpoints(
      job.world(), folder, {.max_to_keep = 1, .sharded = settings.sharded});
  const std::string plain = folder + "/plain";
  std::vector<double> ours, floor;
  for (int round = 0; round < settings.rounds; ++round) {
    job.world().Barrier();
    auto begin = Clock::now();
    if (job.rank() == 0) WritePlainly(plain, state);
    floor.push_back(Seconds(begin));
    job.world().Barrier();
    begin = Clock::now();
    checkpoints.Save({.step = static_cast<uint64_t>(round)}, state.Tensors());
    ours.push_back(Seconds(begin));
  }
  const auto bytes = static_cast<double>(state.bytes());
  return {
      {"case", "save"},
      {"ranks", job.size()},
      {"sharded", settings.sharded},
      {"bytes", state.bytes()},
      {"save_ms", Median(ours) * 1e3},
      {"plain_ms", Median(floor) * 1e3},
      {"save_gbps", bytes / Median(ours) / 1e9},
      {"plain_gbps", bytes / Median(floor) / 1e9},
      {"share", Median(floor) / Median(ours)},
      {"wrong", 0}};
}

// A fixed amount of work on data in the cache.
class Computing {
 public:
  explicit Computing(int milliseconds) : values_(4096, 1.0F) {
    constexpr int kTrial = 2000;
    Pass(kTrial);
    const auto begin = Clock::now();
    Pass(kTrial);
    passes_ = std::max(1, static_cast<int>(kTrial * milliseconds / (Seconds(begin) * 1e3)));
  }
  void Run() { Pass(passes_); }
  int passes() const { return passes_; }
  void SetPasses(int passes) { passes_ = passes; }

 private:
  void Pass(int passes) {
    for (int pass = 0; pass < passes; ++pass)
      for (float& value : values_) value = value * 0.999F + 0.001F;
    [[maybe_unused]] volatile float used = values_[1];
  }

  std::vector<float> values_;
  int passes_ = 1;
};

json MeasureSteps(dtrun::Context& job, const Settings& settings, const std::string& folder) {
  State state(kParameters);
  dtrun::CheckpointManager checkpoints(
      job.world(), folder, {.max_to_keep = 1, .sharded = settings.sharded});
  dtrun::GradientReducer reducer(
      job.world(), {{"gradients", dtrun::Buffer(nullptr, kParameters, dtrun::DType::kF32)}});
  Computing computing(settings.step_ms);
  int passes = computing.passes();
  job.world().Broadcast(dtrun::Buffer(&passes, 1), 0);
  computing.SetPasses(passes);
  const auto round = [&](const std::function<void()>& before) {
    job.world().Barrier();
    const auto begin = Clock::now();
    before();
    for (int step = 0; step < settings.steps; ++step) {
      computing.Run();
      reducer.MarkReady(0);
      reducer.Wait();
    }
    return Seconds(begin) / settings.steps;
  };
  std::vector<double> with, without, differences, stops;
  const auto save = [&](uint64_t step) {
    const auto begin = Clock::now();
    checkpoints.StartSave({.step = step}, state.Tensors());
    stops.push_back(Seconds(begin));
  };
  save(0);  // allocates the memory of the copies
  checkpoints.Wait();
  for (int i = 0; i < settings.rounds; ++i) {
    without.push_back(round([] {}));
    with.push_back(round([&] { save(static_cast<uint64_t>(i) + 1); }));
    differences.push_back(with.back() - without.back());
    checkpoints.Wait();  // the disk may take longer than the round
  }
  return {
      {"case", "step"},
      {"ranks", job.size()},
      {"sharded", settings.sharded},
      {"bytes", state.bytes()},
      {"steps_per_checkpoint", settings.steps},
      {"without_ms", Median(without) * 1e3},
      {"with_ms", Median(with) * 1e3},
      {"difference_ms", Median(differences) * 1e3},
      {"start_ms", Median(stops) * 1e3},
      {"share", Median(differences) / Median(without)},
      {"wrong", 0}};
}

json MeasureAll(dtrun::Context& job, const Settings& settings) {
  const std::string folder = settings.folder + "/dtrun_checkpoint_perf";
  json rows = json::array();
  const auto shown = [&](const json& row, const char* format, auto... values) {
    rows.push_back(row);
    if (job.rank() == 0) std::printf(format, values...);
    std::fflush(stdout);
  };
  for (const uint64_t count : {kParameters, uint64_t{20'000'000}}) {
    const json row = MeasureSave(job, settings, folder, count);
    shown(
        row, "save of %9lu bytes: %8.2f ms, %.2f GB/s; plain write and fsync %8.2f ms, %.2f GB/s\n",
        static_cast<unsigned long>(row["bytes"].get<uint64_t>()), row["save_ms"].get<double>(),
        row["save_gbps"].get<double>(), row["plain_ms"].get<double>(),
        row["plain_gbps"].get<double>());
  }
  const json row = MeasureSteps(job, settings, folder);
  shown(
      row,
      "step of %.1f ms, a checkpoint of %lu bytes every %d steps: %+.3f ms, %+.2f %%; the call "
      "returns after %.2f ms\n",
      row["without_ms"].get<double>(), static_cast<unsigned long>(row["bytes"].get<uint64_t>()),
      settings.steps, row["difference_ms"].get<double>(), 100 * row["share"].get<double>(),
      row["start_ms"].get<double>());
  job.world().Barrier();
  if (job.rank() == 0) std::filesystem::remove_all(folder);
  return rows;
}

}  // namespace

using dtrun::bench::OptionSet;
using dtrun::bench::Range;

int Main(int argc, char** argv) {
  Settings settings;
  OptionSet options(
      "What a checkpoint costs, beside a plain write and beside none.", "checkpoint_perf");
  options.Add("--rounds", &settings.rounds, "rounds of each", Range<int>{1, 10'000});
  options.Add("--step-ms", &settings.step_ms, "how long a step computes", Range<int>{1, 100'000});
  options.Add("--steps", &settings.steps, "steps for each checkpoint", Range<int>{1, 100'000});
  options.Add("--sharded", &settings.sharded, "all ranks write");
  options.Add("--folder", &settings.folder, "where to write");
  return dtrun::bench::Main(
      options,
      {"checkpoint_perf", [&](dtrun::Context& job) { return MeasureAll(job, settings); },
       [](dtrun::Context&) { return std::string(); }},
      argc, argv);
}

}  // namespace programs::checkpoint_perf
