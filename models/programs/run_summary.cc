#include <dtrun/c.h>
#include <unistd.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "models/callbacks/log_values.h"
#include "models/data/sampling.h"
#include "models/message_text.h"
#include "models/onednn/onednn.h"
#include "models/programs/training.h"
#include "models/report/page.h"

namespace dtrun::models {
namespace {

std::string HostsLine(const Context& job) {
  std::string hosts;
  for (const Host& host : job.hosts())
    hosts += Text(hosts.empty() ? "" : ", ", host.name, " (", host.slots, ")");
  return hosts;
}

std::string RateLine(const TrainOptions& o, int ranks) {
  std::string line = Text("learning rate ", o.learning_rate);
  if (o.warmup_epochs > 0) {
    line += Text(
        " growing to ", o.learning_rate * ranks, " in ", o.warmup_epochs,
        o.warmup_epochs == 1 ? " epoch" : " epochs");
  }
  if (o.schedule != "cooldown") return Text(line, " (", o.schedule, ")");
  return Text(line, " (falling over the last ", 100 * o.cooldown, " % of the steps)");
}

// The way in which the ranks' gradients or steps are combined. Empty for the usual way.
std::string TogetherText(const TrainOptions& o) {
  if (o.adasum) return ", steps combined by adaptive summation";
  if (o.deterministic == 0) return "";
  return Text(", deterministic: a tree of ", o.deterministic, " parts of a global batch");
}

std::string GpuLine(const TrainOptions& o, const PreparedGpu& gpu) {
  return Text(
      "GPU, ", Devices()[static_cast<size_t>(gpu.index) + 1].model, ", ", o.dtype,
      o.dtype == "f32" ? (o.tf32 ? " (products in TF32)" : " (without TF32)") : "",
      gpu.shared_somewhere ? Text(", shared: ", gpu.sharers, " ranks on GPU ", gpu.index) : "");
}

// The dtype of the layers. Empty for f32, unless bf16 was requested.
std::string DtypeText(const TrainOptions& o, const Preparation& ready) {
  if (ready.model->dtype() == DType::kBF16) return ", bf16";
  return o.dtype == "bf16" ? ", f32 instead of bf16, which this CPU has no arithmetic for" : "";
}

// One line for each part of the network for which oneDNN has no fast code. Most networks have none.
std::string SlowLines(const Preparation& ready) {
  if (ready.on_gpu()) return "";
  std::string lines;
  for (const std::string& part : ready.model->slow_parts())
    lines += Text("Slow        ", part, "\n");
  return lines;
}

std::string ComputeLine(const TrainOptions& o, const Preparation& ready) {
  if (ready.on_gpu()) return GpuLine(o, ready.gpu);
  return Text(
      "CPU, oneDNN ", onednn::Version(), " ", onednn::InstructionSet(),
      ", threads per rank: ", ready.threads, DtypeText(o, ready),
      ready.gpu.why_not.empty() ? "" : Text("; no GPU, because ", ready.gpu.why_not));
}

}  // namespace

std::string Heading(Context& job, const TrainOptions& options, const Preparation& ready) {
  const DatasetInfo& data = ready.data->info;
  return Text(
      "Replicas    ", job.size(), " on ", HostsLine(job), ", strategy ", options.strategy,
      "\nCompute     ", ComputeLine(options, ready), "\nReduction   ",
      ready.device->index() < 0 ? "CPU"
      : job.size() > 1          ? "between GPUs"
                                : "none",
      ", backend ", job.world().backend(), TogetherText(options), "\nData        ",
      options.data_dir, ": ", data.train_examples, " training and ", data.test_examples,
      " test images, ", data.shape.height, "x", data.shape.width, ", ", data.classes,
      " classes\nNetwork     ", ready.model->description(), ": ", ready.model->parameter_count(),
      " parameters\nOptimizer   ", options.optimizer, ", ", RateLine(options, job.launch_size()),
      ", global batch ", ready.global_batch, ", ",
      BatchesPerEpoch(data.train_examples, ready.global_batch), " steps use every example once\n",
      SlowLines(ready));
}

std::string ResultLine(const TrainingResult& r, uint64_t test_images) {
  return Format("Test: loss %.4f, accuracy %.4f", r.test_loss, r.test_accuracy) +
         Text(
             " on ", test_images, " images; parameters ", r.parameter_digest,
             r.ranks == 1 ? "" : Text(" on all ", r.ranks, " ranks"));
}

namespace {

enum class Zone { kUtc, kLocal };

std::string Now(Zone zone, const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  zone == Zone::kUtc ? gmtime_r(&now, &parts) : localtime_r(&now, &parts);
  char text[100] = {};
  std::strftime(text, sizeof text, format, &parts);
  return text;
}

// "node1 (8 ranks), node2 (8 ranks)". Readers elsewhere do not know which host "localhost" was.
std::string HostNames(const Context& job) {
  std::string names;
  for (const Host& host : job.hosts()) {
    char own[256] = {};
    const bool has_name = host.name == "localhost" && gethostname(own, sizeof own - 1) == 0;
    names += Text(
        names.empty() ? "" : ", ", has_name ? own : host.name.c_str(), " (", host.slots,
        host.slots == 1 ? " rank)" : " ranks)");
  }
  return names;
}

}  // namespace

HParams HParamsOf(const TrainOptions& o, int ranks) {
  const auto number = [](auto value) { return static_cast<double>(value); };
  return {
      {"dtype", o.dtype},
      {"epochs", number(o.epochs)},
      {"global_batch", number(GlobalBatchOf(o, ranks))},
      {"learning_rate", o.learning_rate},
      {"network", o.network},
      {"optimizer", o.optimizer},
      {"ranks", number(ranks)},
      {"schedule", o.schedule},
      {"seed", number(o.seed)},
      {"strategy", o.strategy},
      {"warmup_epochs", number(o.warmup_epochs)}};
}

std::map<std::string, std::string> OriginOf(
    const std::string& program, const Context& job, const TrainOptions& options) {
  return {
      {"program", program},
      {"dtrun", dtrun_version()},
      {"date", Now(Zone::kUtc, "%Y-%m-%dT%H:%M:%SZ")},
      {"command", options.command},
      {"data", options.data_dir},
      {"network", options.network},
      {"strategy", options.strategy},
      {"ranks", Text(job.size())},
      {"optimizer", options.optimizer},
      {"learning_rate", Text(options.learning_rate)},
      {"dtype", options.dtype},
      {"seed", Text(options.seed)}};
}

std::map<std::string, std::string> MetadataOf(
    const Context& job, const Preparation& ready, const Trained& trained) {
  const TrainOptions& options = ready.options;
  const double per_epoch = static_cast<double>(
      StepsPerEpoch(options, ready.data->info.train_examples, job.launch_size()));
  std::map<std::string, std::string> metadata = OriginOf("cnn_fmnist", job, options);
  metadata["global_batch"] = Text(ready.global_batch);
  metadata["steps"] = Text(trained.steps);
  metadata["epochs"] = Format("%.6g", static_cast<double>(trained.steps) / per_epoch);
  // As JSON, the shortest text that reads back as the same number.
  metadata["test_accuracy"] = nlohmann::json(trained.result.test_accuracy).dump();
  metadata["test_loss"] = nlohmann::json(trained.result.test_loss).dump();
  metadata["parameters"] = trained.result.parameter_digest;
  return metadata;
}

RunReport PageOf(
    Context& job, const TrainOptions& options, const Preparation& ready, const Trained& trained) {
  const TrainingResult& result = trained.result;
  RunReport page;
  page.title = Text("cnn_fmnist on ", job.size(), job.size() == 1 ? " rank" : " ranks");
  page.results = {
      {"test accuracy", AccuracyText(result.test_accuracy)},
      {"test loss", LossText(result.test_loss)},
      {"parameters", result.parameter_digest}};
  page.settings = {
      {"finished", Now(Zone::kLocal, "%Y-%m-%d %H:%M:%S %z (%Z)")},
      {"hosts", HostNames(job)},
      {"command", options.command},
      {"dtrun", dtrun_version()},
      {"data", options.data_dir},
      {"network", ready.model->description()},
      {"strategy", options.strategy},
      {"optimizer", options.optimizer},
      {"learning rate", Text(options.learning_rate)},
      {"global batch", Text(ready.global_batch)},
      {"seed", Text(options.seed)},
      {"computed in", options.dtype},
      {"threads per rank", Text(ready.threads)},
      {"backend", job.world().backend()}};
  for (const EpochResult& epoch : result.epochs) {
    ReportEpoch shown;
    shown.loss = epoch.loss;
    shown.accuracy = epoch.train_accuracy;
    shown.validation_loss = epoch.test_loss;
    shown.validation_accuracy = epoch.test_accuracy;
    shown.examples_per_s = epoch.images_per_s;
    shown.seconds = epoch.seconds;
    page.epochs.push_back(shown);
  }
  page.ranks = GatherRankTimes(job, trained.time);
  return page;
}

}  // namespace dtrun::models
