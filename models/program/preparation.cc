#include "models/program/preparation.h"

#include <filesystem>
#include <utility>

#include "models/data/sampling.h"
#include "models/networks/network.h"
#include "models/optim/by_name.h"
#include "models/program/run_options.h"
#include "models/text.h"
#include "models/train/digest.h"
#include "models/train/report.h"
#include "models/train/step.h"

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

std::unique_ptr<Sequential> MakeModel(
    const Dataset& data, uint64_t share, const TrainOptions& options) {
  const Shape image{data.train.height, data.train.width, 1};
  Network network =
      NetworkByName(options.network, {.classes = data.classes, .image = image.height});
  const bool takes_images = network.input.channels == 1;
  if (!takes_images && image.height != image.width) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "images of ", image.height, "x", image.width,
                                         ", expected square ones for network ", network.name));
  }
  const ChunkPlan plan = PlanChunks(share);
  return std::make_unique<Sequential>(
      takes_images ? image : network.input, std::move(network.layers),
      SequentialOptions{
          .micro_batch = plan.micro_batch,
          .micro_batches = plan.micro_batches,
          .seed = options.seed,
          .dtype = options.dtype == "bf16" ? DType::kBF16 : DType::kF32});
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

// The folder is made, as it will be.
std::string WhyNoFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Text(folder, ": cannot be made: ", error.message());
  return WhyNotWritable(std::filesystem::path(folder) / "model.json");
}

// Before training, not after it.
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

Verdict PrepareToTrain(const TrainOptions& options, const Context& job, Preparation& ready) {
  try {
    ready.data = LoadDataset(options.data_dir);
  } catch (const Error& error) {
    return {kDataUnusable, error.what()};
  }
  const int ranks = job.size();
  ready.threads = options.threads > 0 ? options.threads : job.threads();
  ready.global_batch = GlobalBatchOf(options, ranks);
  Verdict verdict = CheckBatch(options, ready.global_batch, ready.data.train.count, ranks);
  if (verdict.exit_code != kSuccess) return verdict;
  const uint64_t largest_share =
      (ready.global_batch + static_cast<uint64_t>(ranks) - 1) / static_cast<uint64_t>(ranks);
  try {
    ready.model = MakeModel(ready.data, largest_share, options);
  } catch (const Error& error) {
    return {kDataUnusable, Text(options.data_dir, ": ", error.what())};
  }
  try {
    OptimizerSettings settings;
    settings.learning_rate = options.learning_rate;
    settings.momentum = options.momentum;
    ready.optimizer = MakeOptimizer(
        options.optimizer, ready.model->parameters(), ready.model->parameter_shapes(), settings);
    RateAt(options, 0, ready.data.train.count, ranks);
  } catch (const Error& error) {
    return {kUsage, error.what()};
  }
  if (job.rank() == 0) verdict = CheckFiles(options);
  if (verdict.exit_code != kSuccess) return verdict;
  verdict.settings = SharedSettings(options) + DataSettings(ready.data);
  return verdict;
}

}  // namespace

Preparation Prepare(const ParsedOptions& parsed, const Context& job) {
  Preparation ready;
  ready.verdict = parsed.error.empty() ? PrepareToTrain(parsed.options, job, ready)
                                       : Verdict{kUsage, parsed.error + " (see --help)"};
  return ready;
}

}  // namespace dtrun::models
