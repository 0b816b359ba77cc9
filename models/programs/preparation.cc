#include <dtrun/error.h>

#include <filesystem>
#include <utility>

#include "models/data/sampling.h"
#include "models/message_text.h"
#include "models/networks/network.h"
#include "models/optim/by_name.h"
#include "models/programs/training.h"
#include "models/programs/training_options.h"
#include "models/train/gradient_tree.h"
#include "models/train/report.h"

namespace dtrun::models {
namespace {

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

// Creates the folder, because saving will need it.
std::string WhyNoFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Text(folder, ": cannot be made: ", error.message());
  return WhyNotWritable(std::filesystem::path(folder) / "model.json");
}

// Checks the output files before training, not after it.
Verdict CheckFiles(const TrainOptions& options) {
  const std::string json = options.json.empty() ? "" : WhyNotWritable(options.json);
  if (!json.empty()) return {kResultNotWritten, Text("--json: ", json)};
  const std::string report = options.report.empty() ? "" : WhyNotWritable(options.report);
  if (!report.empty()) return {kResultNotWritten, Text("--report: ", report)};
  const std::string save = options.save.empty() ? "" : WhyNoFolder(options.save);
  if (!save.empty()) return {kResultNotWritten, Text("--save: ", save)};
  const std::string onnx = options.export_onnx.empty() ? "" : WhyNotWritable(options.export_onnx);
  if (!onnx.empty()) return {kResultNotWritten, Text("--export-onnx: ", onnx)};
  return {};
}

Verdict PrepareToTrain(const Context& job, Preparation& ready) {
  const TrainOptions& options = ready.options;
  const DatasetInfo& data = ready.data->info;
  const int ranks = job.size();
  if (options.dtype == "f16" && options.device == "cpu") {
    const std::string& why_not = ready.gpu.why_not;
    return {
        kUsage, Text(
                    "--dtype f16: on a CPU, expected f32 or bf16",
                    why_not.empty() ? "" : Text(" (", why_not, ")"))};
  }
  ready.threads = ComputeThreads(options, job);
  ready.global_batch = GlobalBatchOf(options, job.launch_size());
  Verdict verdict = CheckBatch(options, ready.global_batch, data.train_examples, ranks);
  if (verdict.exit_code != kSuccess) return verdict;
  if (options.adasum && (ranks & (ranks - 1)) != 0)
    return {kUsage, Text("--adasum: on ", ranks, " ranks, expected 1, 2, 4, 8 or so")};
  if (options.adasum && options.strategy == "central_storage")
    return {kUsage, "--adasum: given with --strategy central_storage, which has one optimizer"};
  if (options.deterministic > 0) {
    const std::string obstacle = GradientTree::Obstacle(options.deterministic, ranks, job.hosts());
    if (!obstacle.empty()) return {kUsage, "--deterministic: " + obstacle};
  }
  const int shares = options.deterministic > 0 ? options.deterministic : ranks;
  const uint64_t largest_share = GradientTree::LargestLeaf(ready.global_batch, shares);
  ready.model.reset();
  try {
    ready.device = MakeChosenDevice(job, ready);
    ready.model = MakeModel(data, largest_share, options, *ready.device);
  } catch (const Error& error) {
    if (ready.on_gpu())
      return {
          kUsage, Text(
                      "--device ", options.device, ": a batch of ", largest_share,
                      largest_share == 1 ? " example: " : " examples: ", error.what(),
                      error.code() == ErrorCode::kUnavailable
                          ? "; expected a smaller batch (--batch-size auto takes the largest that "
                            "fits)"
                          : "")};
    const bool fits = error.code() != ErrorCode::kInvalidArgument;
    return {
        fits ? ExitCodeOf(error.code()) : int{kDataUnusable},
        Text(options.data_dir, ": ", error.what())};
  }
  try {
    OptimizerSettings settings = options.settings;
    settings.learning_rate = options.learning_rate;
    ready.optimizer = MakeOptimizer(
        options.optimizer, ready.model->parameters(), ready.model->parameter_shapes(), settings,
        *ready.device);
    RateAt(options, 0, data.train_examples, job.launch_size());
  } catch (const Error& error) {
    return {kUsage, error.what()};
  }
  return job.rank() == 0 ? CheckFiles(options) : Verdict{};
}

DType DtypeOf(const std::string& name) {
  if (name == "bf16") return DType::kBF16;
  return name == "f16" ? DType::kF16 : DType::kF32;
}

}  // namespace

std::unique_ptr<Sequential> MakeModel(
    const DatasetInfo& data, uint64_t share, const TrainOptions& options, ComputeDevice& device) {
  const Shape image{data.shape.height, data.shape.width, 1};
  Network network =
      NetworkByName(options.network, {.classes = data.classes, .image = image.height});
  const bool takes_images = network.input.channels == 1;
  if (!takes_images && image.height != image.width) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "images of ", image.height, "x", image.width,
                                         ", expected square ones for network ", network.name));
  }
  // A GPU has no caches to fit into: a chunk is the whole share.
  const bool on_gpu = device.device().kind == DeviceKind::kCuda;
  const ChunkPlan plan = on_gpu ? ChunkPlan{static_cast<int>(share), 1} : PlanChunks(share);
  return std::make_unique<Sequential>(
      takes_images ? image : network.input, std::move(network.layers),
      SequentialOptions{
          .micro_batch = plan.micro_batch,
          .micro_batches = plan.micro_batches,
          .seed = options.seed,
          .dtype = DtypeOf(options.dtype),
          .device = &device});
}

int ComputeThreads(const TrainOptions& options, const Context& job) {
  if (options.threads > 0) return options.threads;
  return options.deterministic > 0 ? 1 : job.threads();
}

// The ranks compare their command lines first. A rank with other options might skip the collective
// calls below.
Preparation Prepare(const ParsedOptions& parsed, Context& job, KeptImages* kept) {
  Preparation ready;
  const TrainOptions& options = parsed.options;
  ready.verdict = parsed.error.empty() ? Verdict{kSuccess, "", SharedSettings(options)}
                                       : Verdict{kUsage, parsed.error + " (see --help)"};
  ready.verdict = AgreeOn(ready.verdict, job);
  if (ready.verdict.exit_code != kSuccess) return ready;
  try {
    ready.data = LoadImageDataset(options.data_dir, job, kept);
  } catch (const UnusableDataError& error) {
    ready.verdict = {kDataUnusable, error.what()};
    return ready;
  } catch (const Error& error) {
    // Other errors may not reach all ranks, or may report lost ranks.
    if (error.code() != ErrorCode::kMismatch && error.code() != ErrorCode::kUnavailable) throw;
    ready.verdict = {ExitCodeOf(error.code()), error.what()};
    return ready;
  }
  ready.options = options;
  ChooseDeviceTogether(job, ready);
  if (ready.verdict.exit_code != kSuccess) return ready;
  ready.verdict = AgreeOn(PrepareToTrain(job, ready), job);
  if (ready.verdict.exit_code == kSuccess || !ready.on_gpu() || ready.gpu.asked_for) return ready;
  UseCpu(options, ready.verdict.problem, ready);
  ready.verdict = AgreeOn(PrepareToTrain(job, ready), job);
  return ready;
}

}  // namespace dtrun::models
