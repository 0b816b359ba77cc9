// The speed of two workers of a parameter server compared with one worker, and the cost of the
// server. The same program runs alternately as a job with one worker and as a job with two workers.
// Each worker has one thread.

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/benchmark.h"

namespace dtrun::bench {
namespace {

using nlohmann::json;

struct Settings {
  std::string dtrun = "launcher/dtrun", program = "models/cnn_fmnist", network = "C", json_file;
  int rounds = 5, steps = 150, batch_size = 128;
};

// Runs a job and returns its result.
json Train(const Settings& settings, int workers) {
  const std::string file = "/tmp/dtrun_parameter_server_perf." + std::to_string(::getpid());
  const std::vector<std::string> words = {
      settings.dtrun,
      "--launcher",
      "local",
      "--tag",
      "none",
      "--threads",
      "1",
      "-np",
      std::to_string(workers + 1),
      "--ps",
      "1",
      settings.program,
      "--strategy",
      "parameter_server",
      "--network",
      settings.network,
      "--batch-size",
      std::to_string(settings.batch_size),
      "--epochs",
      "100",
      "--max-steps",
      std::to_string(settings.steps * workers),
      "--verbose",
      "0",
      "--json",
      file};
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t job = 0;
  int status = -1;
  if (posix_spawn(&job, argv[0], &files, nullptr, argv.data(), environ) == 0)
    ::waitpid(job, &status, 0);
  posix_spawn_file_actions_destroy(&files);
  if (status != 0) throw std::runtime_error("the job of " + words[0] + " has failed");
  const json result = json::parse(std::ifstream(file));
  ::unlink(file.c_str());
  return result;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

json Measure(const Settings& settings) {
  std::vector<double> one, two, ratios, cpu_us, update_us, copy_us;
  for (int round = 0; round < settings.rounds; ++round) {
    one.push_back(Train(settings, 1)["images_per_s"]);
    const json job = Train(settings, 2);
    two.push_back(job["images_per_s"]);
    ratios.push_back(two.back() / one.back());
    const auto each = [&](const char* key) {
      return job[key].get<double>() / job["updates"].get<double>() * 1e6;
    };
    cpu_us.push_back(each("server_cpu_s"));
    update_us.push_back(each("server_update_s"));
    copy_us.push_back(each("server_copy_s"));
    std::printf(
        "1 worker %6.0f images/s, 2 workers %6.0f: %.2f\n", one.back(), two.back(), ratios.back());
    std::fflush(stdout);
  }
  // The time of a step in the job with one worker.
  const double gradient_us = settings.batch_size / Median(one) * 1e6;
  return {
      {"network", settings.network},
      {"batch_size", settings.batch_size},
      {"one_worker_images_per_s", Median(one)},
      {"two_workers_images_per_s", Median(two)},
      {"ratio", Median(ratios)},
      {"step_of_one_us", gradient_us},
      {"server_cpu_us", Median(cpu_us)},
      {"server_update_us", Median(update_us)},
      {"server_copy_us", Median(copy_us)}};
}

int Run(const Settings& settings) {
  constexpr int kTries = 3;
  for (int attempt = 1;; ++attempt) {
    CpuWatch watch;
    const json result = Measure(settings);
    const double others = watch.HostSeconds() - watch.OwnSeconds();  // the jobs are children
    const double share = others / watch.AvailableSeconds();
    std::printf(
        "medians of %d: 1 worker %.0f images/s, 2 workers %.0f, ratio %.2f; a step of one worker "
        "%.0f us; the server's thread %.0f us of a CPU for each gradient (update %.0f, copy of the "
        "values %.0f)\n",
        settings.rounds, result["one_worker_images_per_s"].get<double>(),
        result["two_workers_images_per_s"].get<double>(), result["ratio"].get<double>(),
        result["step_of_one_us"].get<double>(), result["server_cpu_us"].get<double>(),
        result["server_update_us"].get<double>(), result["server_copy_us"].get<double>());
    if (share > 0.05) {
      std::printf("other processes used %.0f %% of the CPU\n", 100 * share);
      if (attempt < kTries) continue;
      std::puts("INVALID");
      return 1;
    }
    if (!settings.json_file.empty())
      std::ofstream(settings.json_file) << json{result}.dump(1) << '\n';
    return 0;
  }
}

}  // namespace
}  // namespace dtrun::bench

using dtrun::bench::OptionSet;
using dtrun::bench::Range;

int main(int argc, char** argv) {
  dtrun::bench::Settings settings;
  OptionSet options(
      "How much more two workers of a parameter server train than one.", "parameter_server_perf");
  const Range<int> number = {1, 1'000'000};
  options.Add("--dtrun", &settings.dtrun, "the launcher");
  options.Add("--program", &settings.program, "cnn_fmnist");
  options.Add("--network", &settings.network, "what is trained");
  options.Add("--batch-size", &settings.batch_size, "of a gradient", number);
  options.Add("--steps", &settings.steps, "of each worker in a job", number);
  options.Add("--rounds", &settings.rounds, "jobs of each kind", number);
  options.Add("--json", &settings.json_file, "write the result to this file");
  if (const auto status = options.Parse(argc, argv)) return *status;
  try {
    return dtrun::bench::Run(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parameter_server_perf: %s\n", error.what());
    return 1;
  }
}
