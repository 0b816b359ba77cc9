// Trains network C on Fashion-MNIST, or another IDX data set, as any number of ranks.

#include <dtrun/dtrun.h>
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <dnnl.hpp>
#include <memory>
#include <string>

#include "models/data/dataset.h"
#include "models/data/sampling.h"
#include "models/layers/sequential.h"
#include "models/network_c.h"
#include "models/optim/by_name.h"
#include "models/text.h"
#include "models/train/digest.h"
#include "models/train/exit_codes.h"
#include "models/train/messages.h"
#include "models/train/options.h"
#include "models/train/report.h"
#include "models/train/step.h"
#include "models/train/trainer.h"
#include "models/train/verdict.h"

namespace dtrun::models {
namespace {

// What a rank gets ready on its own before all ranks agree to start.
struct Preparation {
  Verdict verdict;
  Dataset data;
  uint64_t global_batch = 0;
  std::unique_ptr<Sequential> model;
  std::unique_ptr<RateOptimizer> optimizer;
  Schedule schedule = ConstantRate{};
};

uint64_t GlobalBatchOf(const TrainOptions& options, int ranks) {
  if (options.global_batch_size > 0) return options.global_batch_size;
  return options.batch_size * static_cast<uint64_t>(ranks);
}

// "--batch-size 1024 on 8 ranks"
std::string BatchAsGiven(const TrainOptions& options, int ranks) {
  if (options.global_batch_size > 0) return Text("--global-batch-size ", options.global_batch_size);
  return Text("--batch-size ", options.batch_size, " on ", ranks, ranks == 1 ? " rank" : " ranks");
}

Verdict CheckBatch(const TrainOptions& options, uint64_t global_batch, uint64_t images, int ranks) {
  const std::string given = BatchAsGiven(options, ranks);
  if (global_batch > images) {
    return {
        kUsage, Text(
                    given, ": the global batch of ", global_batch,
                    " is larger than the data set, expected at most its ", images,
                    " training images in ", options.data_dir)};
  }
  if (global_batch < static_cast<uint64_t>(ranks))
    return {kUsage, Text(given, ": expected at least 1 example for each of the ", ranks, " ranks")};
  const uint64_t batches = BatchesPerEpoch(images, global_batch);
  if (options.steps_per_epoch > batches) {
    return {
        kUsage, Text(
                    "--steps-per-epoch ", options.steps_per_epoch, ": expected at most ", batches,
                    ", as many global batches of ", global_batch, " as there are in ", images,
                    " training images")};
  }
  return {};
}

std::unique_ptr<Sequential> MakeModel(const Dataset& data, uint64_t share, uint64_t seed) {
  const ChunkPlan plan = PlanChunks(share);
  return std::make_unique<Sequential>(
      Shape{data.train.height, data.train.width, 1}, NetworkC(data.classes),
      SequentialOptions{plan.micro_batch, plan.micro_batches, seed});
}

// Ranks that read different files would train happily on.
std::string DataSettings(const Dataset& data) {
  const auto labels = [](const Images& images) {
    return ToHex(Digest(images.labels.data(), images.labels.size()));
  };
  return Text(
      "training labels=", labels(data.train), "\ntest labels=", labels(data.test),
      "\nimage height=", data.train.height, "\nimage width=", data.train.width, "\n");
}

// Of the whole training, as the options cut it.
uint64_t TotalSteps(const TrainOptions& options, const Preparation& ready) {
  uint64_t steps = BatchesPerEpoch(ready.data.train.count, ready.global_batch);
  if (options.steps_per_epoch > 0) steps = options.steps_per_epoch;
  steps *= options.epochs;
  return options.max_steps > 0 ? std::min(steps, options.max_steps) : steps;
}

Schedule ScheduleOf(const TrainOptions& options, const Preparation& ready) {
  ScheduleSettings settings;
  settings.learning_rate = ready.optimizer->learning_rate();
  settings.steps = TotalSteps(options, ready);
  settings.warmup_steps = options.warmup_steps;
  settings.fraction = options.cooldown;
  return MakeSchedule(options.schedule, settings);
}

Verdict PrepareToTrain(const TrainOptions& options, const Context& job, Preparation& ready) {
  try {
    ready.data = LoadDataset(options.data_dir);
  } catch (const Error& error) {
    return {kDataUnusable, error.what()};
  }
  const int ranks = job.size();
  ready.global_batch = GlobalBatchOf(options, ranks);
  Verdict verdict = CheckBatch(options, ready.global_batch, ready.data.train.count, ranks);
  if (verdict.exit_code != kSuccess) return verdict;
  const uint64_t largest_share =
      (ready.global_batch + static_cast<uint64_t>(ranks) - 1) / static_cast<uint64_t>(ranks);
  try {
    ready.model = MakeModel(ready.data, largest_share, options.seed);
  } catch (const Error& error) {
    return {kDataUnusable, Text(options.data_dir, ": ", error.what())};
  }
  try {
    ready.optimizer = MakeOptimizer(
        options.optimizer, ready.model->parameters(), ready.model->parameter_shapes(),
        options.optimizer_settings);
    ready.schedule = ScheduleOf(options, ready);
  } catch (const Error& error) {
    return {kUsage, error.what()};
  }
  if (job.rank() == 0 && !options.json.empty()) {
    const std::string reason = WhyNotWritable(options.json);
    if (!reason.empty()) return {kResultNotWritten, Text("--json: ", reason)};
  }
  verdict.settings = SharedSettings(options) + DataSettings(ready.data);
  return verdict;
}

Preparation Prepare(const ParsedOptions& parsed, const Context& job) {
  Preparation ready;
  ready.verdict = parsed.error.empty() ? PrepareToTrain(parsed.options, job, ready)
                                       : Verdict{kUsage, parsed.error + " (see --help)"};
  return ready;
}

std::string HostsLine(const Context& job) {
  std::string hosts;
  for (const Host& host : job.hosts())
    hosts += Text(hosts.empty() ? "" : ", ", host.name, " (", host.slots, ")");
  return hosts;
}

// "cooldown, warm-up of 5 steps"
std::string ScheduleText(const TrainOptions& options) {
  if (options.warmup_steps == 0) return options.schedule;
  return Text(options.schedule, ", warm-up of ", options.warmup_steps, " steps");
}

void PrintHeading(
    Context& job, const TrainOptions& options, const Preparation& ready, int threads) {
  const dnnl_version_t* onednn = dnnl_version();
  const Images &train = ready.data.train, &test = ready.data.test;
  const std::string text = Text(
      "Replicas    ", job.size(), " on ", HostsLine(job), "\nCompute     CPU, oneDNN ",
      onednn->major, ".", onednn->minor, ".", onednn->patch, ", threads per rank: ", threads,
      "\nReduction   CPU, backend ", job.world().backend(), "\nData        ", options.data_dir,
      ": ", train.count, " training and ", test.count, " test images, ", train.height, "x",
      train.width, ", ", ready.data.classes, " classes\nNetwork     ", ready.model->description(),
      ": ", ready.model->parameter_count(), " parameters\nOptimizer   ", options.optimizer,
      ", learning rate ", ready.optimizer->learning_rate(), " (", ScheduleText(options),
      "), global batch ", ready.global_batch, ", ",
      BatchesPerEpoch(train.count, ready.global_batch), " steps use every example once\n");
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Only rank 0 speaks. A progress line needs a terminal; without one there is a line per epoch.
class Narrator {
 public:
  Narrator(const Context& job, const TrainOptions& options)
      : speaks_(job.rank() == 0),
        lines_(speaks_ && options.verbose > 0),
        draws_(lines_ && options.verbose == 1 && job.terminal_columns() > 0),
        ranks_(job.size()),
        epochs_(options.epochs),
        progress_(options.epochs, job.size(), job.terminal_columns()) {}

  void OnStep(uint64_t epoch, const StepReport& report) {
    if (draws_) progress_.Draw(epoch, report);
  }
  void OnEpoch(uint64_t epoch, const EpochResult& result) {
    if (draws_) progress_.Remove();
    if (lines_) Say(EpochLine(epoch, epochs_, result, ranks_));
  }
  void Say(const std::string& line) const {
    if (!speaks_) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

 private:
  bool speaks_, lines_, draws_;
  int ranks_;
  uint64_t epochs_;
  ProgressPrinter progress_;
};

TrainingResult Train(Context& job, const TrainOptions& options, Preparation& ready) {
  Trainer trainer(
      job.world(), *ready.model, *ready.optimizer, ready.data,
      {.global_batch = ready.global_batch,
       .steps_per_epoch = options.steps_per_epoch,
       .max_steps = options.max_steps,
       .seed = options.seed,
       .overlap = options.overlap,
       .learning_rate = [&ready](uint64_t step) { return ready.schedule.rate(step); }});
  Narrator narrator(job, options);
  TrainingResult result;
  result.ranks = job.size();
  uint64_t steps_done = 0, examples_done = 0;
  for (uint64_t epoch = 1; epoch <= options.epochs && !trainer.finished(); ++epoch) {
    const uint64_t steps_before = steps_done, examples_before = examples_done;
    result.epochs.push_back(trainer.RunEpoch([&](const StepReport& report) {
      steps_done = steps_before + report.step;
      examples_done = examples_before + report.share.examples;
      job.ReportProgress(steps_done, examples_done);
      narrator.OnStep(epoch, report);
    }));
    narrator.OnEpoch(epoch, result.epochs.back());
  }

  const Tally test = trainer.EvaluateTestSet();
  const uint64_t digest = DigestOf(ready.model->parameters());
  CheckEqualOnAllRanks(digest, job.world());
  result.test_loss = test.mean_loss();
  result.test_accuracy = test.accuracy();
  result.parameter_digest = ToHex(digest);
  if (options.log_steps) result.step_losses = trainer.step_losses();
  narrator.Say(ResultLine(result, test.examples));
  return result;
}

int Report(const std::string& problem, int exit_code) {
  std::fprintf(stderr, "cnn_fmnist: %s\n", problem.c_str());
  return exit_code;
}

int WriteResult(const TrainingResult& result, const std::string& path) {
  try {
    WriteAtomically(path, ToJson(result));
  } catch (const Error& error) {
    return Report(Text("--json: ", error.what()), kResultNotWritten);
  }
  return kSuccess;
}

int TrainAsRank(Context& job, const ParsedOptions& parsed) {
  if (!parsed.help.empty()) {
    if (job.rank() == 0) std::fputs(parsed.help.c_str(), stdout);
    return kSuccess;
  }
  const TrainOptions& options = parsed.options;
  const int threads = options.threads > 0 ? options.threads : job.threads();
  omp_set_num_threads(threads);

  Preparation ready = Prepare(parsed, job);
  const Verdict verdict = AgreeOn(ready.verdict, job);
  if (verdict.exit_code != kSuccess)
    return job.rank() == 0 ? Report(verdict.problem, verdict.exit_code) : verdict.exit_code;

  if (job.rank() == 0 && options.verbose > 0) PrintHeading(job, options, ready, threads);
  const TrainingResult result = Train(job, options, ready);
  if (job.rank() != 0 || options.json.empty()) return kSuccess;
  return WriteResult(result, options.json);
}

int Main(int argc, char** argv) {
  const ParsedOptions parsed = ParseOptions(argc, argv);
  try {
    Context job = Init();
    const int exit_code = TrainAsRank(job, parsed);
    job.Shutdown();
    return exit_code;
  } catch (const Error& error) {
    return Report(error.what(), ExitCodeOf(error.code()));
  } catch (const std::exception& error) {
    return Report(error.what(), kInternal);
  }
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) { return dtrun::models::Main(argc, argv); }
