// Measures training steps on made-up images: what hardware, network and reduction give without any
// input, as the ranks of a dtrun job.

#include <dtrun/dtrun.h>
#include <omp.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "models/networks/network.h"
#include "models/synthetic/made_up_steps.h"
#include "models/synthetic/options.h"
#include "models/synthetic/rates.h"
#include "models/text.h"
#include "models/train/exit_codes.h"
#include "models/train/rank_program.h"
#include "models/train/report.h"
#include "models/train/verdict.h"

namespace dtrun::models {
namespace {

using Clock = std::chrono::steady_clock;

int Report(const std::string& problem, int exit_code) {
  return Complain("synthetic_benchmark", problem, exit_code);
}

void Say(const Context& job, const std::string& line) {
  if (job.rank() != 0) return;
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

Network NetworkOf(const SyntheticOptions& options) {
  return NetworkByName(
      options.model, {.image = options.image_size, .synchronized = options.synchronized});
}

// Whether the network can be built for such images is a question of shapes alone: it is asked on a
// small batch, before the ranks meet in what is collective.
Verdict CheckModel(const SyntheticOptions& options, Context& job) {
  try {
    SyntheticOptions alone = options;
    alone.synchronized = false;
    NetworkOf(options);
    Network network = NetworkOf(alone);
    Sequential(network.input, std::move(network.layers), {.micro_batch = 1, .micro_batches = 1});
  } catch (const Error& error) {
    const std::string size =
        options.image_size > 0 ? Text("--image-size ", options.image_size, ": ") : "";
    return {kUsage, size + error.what()};
  }
  if (job.rank() == 0 && !options.json.empty()) {
    const std::string reason = WhyNotWritable(options.json);
    if (!reason.empty()) return {kResultNotWritten, Text("--json: ", reason)};
  }
  return {.settings = SharedSettings(options)};
}

Verdict Check(const ParsedSyntheticOptions& parsed, Context& job) {
  if (!parsed.error.empty()) return {kUsage, parsed.error + " (see --help)"};
  return CheckModel(parsed.options, job);
}

// Images per second of all ranks together. Each rank's own time counts: they need not end at once.
double TimeIteration(Context& job, MadeUpSteps& steps, const SyntheticOptions& options) {
  const Clock::time_point start = Clock::now();
  steps.Run(options.num_batches_per_iter);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  double rate = static_cast<double>(options.batch_size * options.num_batches_per_iter) / seconds;
  job.world().AllReduce(Buffer(&rate, 1));
  return rate;
}

SyntheticResult Measure(Context& job, const SyntheticOptions& options, int threads) {
  MadeUpSteps steps(job.world(), NetworkOf(options), options.batch_size, options.overlap);
  SyntheticResult result{options.model,           job.size(), threads, options.batch_size,
                         steps.parameter_count(), {}};
  Say(job, Text(
               "Model: ", options.model, ", ", result.parameters, " parameters\nBatch size: ",
               options.batch_size, " per rank\nNumber of ranks: ", job.size(),
               ", threads per rank: ", threads, ", reduction: ", job.world().backend()));
  Say(job, "Running warmup...");
  steps.Run(options.num_warmup_batches);
  Say(job, "Running benchmark...");
  for (uint64_t i = 0; i < options.num_iters; ++i) {
    result.images_per_s.push_back(TimeIteration(job, steps, options));
    char rate[64];
    std::snprintf(rate, sizeof(rate), "%.1f", result.images_per_s.back() / job.size());
    Say(job, Text("Iter #", i, ": ", rate, " img/sec per rank"));
  }
  Say(job, SummaryOf(result));
  return result;
}

int BenchmarkAsRank(Context& job, const ParsedSyntheticOptions& parsed) {
  if (!parsed.help.empty()) {
    if (job.rank() == 0) std::fputs(parsed.help.c_str(), stdout);
    return kSuccess;
  }
  const SyntheticOptions& options = parsed.options;
  const int threads = options.threads > 0 ? options.threads : job.threads();
  omp_set_num_threads(threads);
  const Verdict verdict = AgreeOn(Check(parsed, job), job);
  if (verdict.exit_code != kSuccess)
    return job.rank() == 0 ? Report(verdict.problem, verdict.exit_code) : verdict.exit_code;

  const SyntheticResult result = Measure(job, options, threads);
  if (job.rank() != 0 || options.json.empty()) return kSuccess;
  try {
    WriteAtomically(options.json, ToJson(result));
  } catch (const Error& error) {
    return Report(Text("--json: ", error.what()), kResultNotWritten);
  }
  return kSuccess;
}

int Main(int argc, char** argv) {
  const ParsedSyntheticOptions parsed = ParseSyntheticOptions(argc, argv);
  return RunAsRank(
      "synthetic_benchmark", [&](Context& job) { return BenchmarkAsRank(job, parsed); });
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) { return dtrun::models::Main(argc, argv); }
