// Measures training steps on random images, on the ranks of a dtrun job. Every rank repeats steps
// on one batch in memory. The result shows the speed of hardware, network and reduction without
// input.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/distributed_optimizer.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "models/layers/activations.h"
#include "models/layers/sequential.h"
#include "models/message_text.h"
#include "models/networks/network.h"
#include "models/optim/sgd.h"
#include "models/programs/rank_main.h"
#include "models/programs/synthetic_run.h"
#include "models/random/philox.h"
#include "models/train/agreement.h"
#include "models/train/report.h"

namespace dtrun::models {

/// Training steps of a network on one batch of random images and labels per rank, with SGD at a
/// learning rate of 0.01. Measures a step without input. Not thread-safe.
class MadeUpSteps {
 public:
  /// All ranks start from rank 0's parameters. Collective. `world` must outlive this object. Throws
  /// Error kInvalidArgument if the network cannot be built.
  MadeUpSteps(Communicator& world, Network network, uint64_t batch_size, bool overlap);

  size_t parameter_count() const { return model_.parameter_count(); }
  /// Makes `count` optimizer steps. Returns the sum of this rank's losses in the last step.
  /// Collective.
  double Run(uint64_t count);

 private:
  double Step();
  void FillWithNoise();

  uint64_t batch_size_;
  double global_batch_;
  double regularization_scale_;
  bool overlap_;
  Sequential model_;
  Sgd sgd_;
  DistributedOptimizer optimizer_;
  std::vector<uint8_t> labels_;
  uint64_t step_ = 0;
};

namespace {

constexpr uint64_t kSeed = 1;
constexpr double kLearningRate = 0.01;

SequentialOptions ModelOptions(const Network& network, uint64_t batch_size, Communicator& world) {
  SequentialOptions options = OptionsFor(network, batch_size, kSeed);
  options.communicator = &world;
  return options;
}

}  // namespace

MadeUpSteps::MadeUpSteps(Communicator& world, Network network, uint64_t batch_size, bool overlap)
    : batch_size_(batch_size),
      global_batch_(static_cast<double>(batch_size) * world.size()),
      regularization_scale_(1.0 / world.size()),
      overlap_(overlap),
      model_(network.input, std::move(network.layers), ModelOptions(network, batch_size, world)),
      sgd_(
          model_.parameters(),
          {.learning_rate = kLearningRate, .momentum = network.recipe.momentum}),
      optimizer_(world, sgd_, {.op = ReduceOp::kSum}),
      labels_(batch_size) {
  BroadcastParameters(world, model_.parameters(), model_.buffers());
  FillWithNoise();
}

// Fills the input once. Every chunk of every step reads the same numbers.
void MadeUpSteps::FillWithNoise() {
  const size_t count = size_t(model_.chunk()) * model_.inputs();
  PhiloxCounter counter{};
  for (size_t i = 0; i < count; i += 4, ++counter[0]) {
    const auto words = Philox4x32(counter, KeyOfSeed(kSeed));
    for (size_t j = i; j < std::min(i + 4, count); ++j)
      model_.input()[j] = static_cast<float>(words[j - i] >> 8) * 0x1p-24f;
  }
  const auto classes = static_cast<uint32_t>(std::min<size_t>(model_.classes(), 256));
  for (uint8_t& label : labels_) {
    label = static_cast<uint8_t>(Philox4x32(counter, KeyOfSeed(kSeed))[0] % classes);
    ++counter[0];
  }
}

double MadeUpSteps::Run(uint64_t count) {
  double loss = 0;
  for (uint64_t i = 0; i < count; ++i) loss = Step();
  return loss;
}

double MadeUpSteps::Step() {
  const auto on_ready = [&](size_t parameter) {
    if (overlap_) optimizer_.MarkReady(parameter);
  };
  const auto chunk = static_cast<uint64_t>(model_.chunk());
  double loss = 0;
  model_.PrepareWeights();
  for (uint64_t done = 0; done < batch_size_; done += chunk) {
    const uint64_t examples = std::min(chunk, batch_size_ - done);
    Pass pass;
    pass.training = true;
    pass.step = step_;
    pass.first_example = static_cast<uint32_t>(done);
    pass.first = done == 0;
    pass.last = done + examples == batch_size_;
    pass.regularization_scale = regularization_scale_;
    model_.Forward(pass, static_cast<int>(examples));
    std::fill_n(model_.output_gradient(), size_t(chunk) * model_.classes(), 0.0f);
    loss += SoftmaxCrossEntropy(
                model_.output(), labels_.data() + done, examples, model_.classes(),
                static_cast<float>(1 / global_batch_), model_.output_gradient())
                .loss;
    model_.Backward(pass, static_cast<int>(examples), on_ready);
  }
  optimizer_.Step();
  ++step_;
  return loss;
}

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

// Shapes alone decide if the network can be built. So this function builds it for a batch of 1,
// before the ranks build their networks together.
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

// Images per second of all ranks together: the sum of the ranks' rates, each by its own clock.
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
