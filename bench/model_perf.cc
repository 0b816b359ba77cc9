// Times a training step of a network, as it is and deterministic. The step alternates with the
// products of the step as oneDNN's primitives alone (OnednnFloor), and with the same step in other
// frameworks (Peers).

#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/types.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_program.h"
#include "bench/measure.h"
#include "bench/onednn_floor.h"
#include "bench/peer.h"
#include "models/data/dataset.h"
#include "models/layers/sequential.h"
#include "models/losses/loss.h"
#include "models/networks/network.h"
#include "models/onednn/onednn.h"
#include "models/optim/by_name.h"
#include "models/optim/rate_optimizer.h"
#include "models/train/gradient_tree.h"
#include "models/train/replica.h"
#include "models/train/steps.h"

namespace dtrun::bench {

/// A network and the sizes of its step. 0: the default of NetworkOptions or TrainingStep.
struct StepSettings {
  std::string model = "C";
  int image = 0, classes = 0;
  int batch = 0;
  int micro_batch = 0, micro_batches = 1;
};

models::Network NetworkOf(const StepSettings& settings);

/// Made-up images: the same bytes in every run. The labels cycle through the classes.
struct Images {
  models::Shape shape;
  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
};

Images MadeUpImages(const models::Network& network, int count);

/// The step of a rank: images to floats, forward, loss, backward, reduction, optimizer. The
/// optimizer is that of the network's recipe. The micro-batches are those of training, unless the
/// settings name others.
class TrainingStep {
 public:
  /// With `leaves`, a GradientTree of so many leaves sums the gradients. `images` outlive the step.
  TrainingStep(
      Context& job, const StepSettings& settings, const Images& images, DType dtype,
      std::optional<int> leaves = {});

  void Run();
  const models::Sequential& model() const { return model_; }

 private:
  models::Network network_;
  models::Sequential model_;
  std::unique_ptr<models::RateOptimizer> optimizer_;
  models::SparseCategoricalCrossentropy loss_;
  std::optional<models::GradientTree> tree_;
  std::optional<models::Replica> replica_;
  models::ReplicaBatch batch_;
};

namespace {

using nlohmann::json;

struct Settings {
  StepSettings step;
  std::vector<std::string> dtypes = {"f32", "bf16"};
  int threads = 1, least_rounds = 15;
  std::vector<std::string> peers, peer_environment;
};

constexpr int kLeaves = 8;  // of a deterministic step

// The types that a network computes in here: "f32", "bf16" or "bf16,f32". `remark` explains the
// difference if bf16 was requested.
struct Arithmetic {
  std::string computed_in, remark;
};

Arithmetic ArithmeticOf(const models::Sequential& model, const std::string& dtype) {
  if (dtype == "f32") return {"f32", ""};
  const std::string isa = models::onednn::InstructionSet();
  if (model.dtype() == DType::kF32)
    return {"f32", "bf16: oneDNN has no bf16 arithmetic for " + isa + "; computed in f32"};
  const auto has = [&](const char* part) { return isa.find(part) != std::string::npos; };
  if (!has("BF16") && !has("FP16") && !has("AMX") && !has("AVX10"))
    return {"bf16", "bf16: " + isa + " has no bf16 arithmetic; oneDNN emulates the products"};
  for (const models::Layer* layer : model.layers()) {
    if (layer->kind() == "residual" && !layer->computes_in_bf16())
      return {"bf16,f32", "bf16: residual blocks are computed in f32"};
  }
  return {"bf16", ""};
}

void PrintParts(const OnednnFloor& floor) {
  for (const FloorPart& part : floor.parts()) {
    const std::string name =
        part.layers == 1 ? part.name : std::to_string(part.layers) + " x " + part.name;
    std::printf(
        "#   %-66s %5d at a time %9.2f us per image  %s\n", name.c_str(), part.micro_batch,
        part.us_per_example * part.layers, part.implementation.c_str());
  }
}

// The peers of one measurement.
class Peers {
 public:
  Peers(const Settings& settings, const std::string& dtype) : network_(settings.step.model) {
    const StepSettings& step = settings.step;
    const std::vector<std::string> options = {
        "--serve",
        "--model " + step.model,
        "--dtype " + dtype,
        "--batch " + std::to_string(step.batch),
        "--threads " + std::to_string(settings.threads),
        "--image " + std::to_string(step.image),
        "--classes " + std::to_string(step.classes)};
    for (const std::string& command : settings.peers)
      peers_.push_back(std::make_unique<Peer>(command, options, settings.peer_environment));
  }

  // Throws Error kMismatch if a peer's network has another number of parameters.
  void CheckParameters(uint64_t parameters) const {
    for (const auto& peer : peers_) {
      if (peer->parameters() == parameters) continue;
      throw Error(
          ErrorCode::kMismatch, "peer '" + peer->command() + "': its network has " +
                                    std::to_string(peer->parameters()) +
                                    " parameters; expected the " + std::to_string(parameters) +
                                    " of network " + network_);
    }
  }

  void AddSides(std::vector<std::function<void()>>& sides) {
    for (const auto& peer : peers_)
      for (const std::string& variant : peer->variants())
        sides.emplace_back([&peer, variant] { peer->Step(variant); });
  }

  // `us` has the times of the added sides, in their order. The fastest variant of a peer counts.
  json Rows(const double* us, double images_us, double images_per_s) const {
    json rows = json::array();
    for (const auto& peer : peers_) {
      json variants = json::object();
      double best = 0;
      std::string best_variant;
      for (const std::string& variant : peer->variants()) {
        const double speed = images_us / *us++;
        variants[variant] = speed;
        if (speed > best) best_variant = variant;
        best = std::max(best, speed);
      }
      rows.push_back(
          {{"name", peer->name()},
           {"command", peer->command()},
           {"variants", variants},
           {"variant", best_variant},
           {"images_per_s", best},
           {"ratio", images_per_s / best}});
    }
    return rows;
  }

 private:
  std::vector<std::unique_ptr<Peer>> peers_;
  std::string network_;
};

json Measure(Context& job, const Settings& settings, const std::string& dtype) {
  const DType type = dtype == "bf16" ? DType::kBF16 : DType::kF32;
  const int batch = settings.step.batch;
  const models::Network network = NetworkOf(settings.step);
  Peers peers(settings, dtype);
  const Images images = MadeUpImages(network, batch);
  TrainingStep step(job, settings.step, images, type);
  peers.CheckParameters(step.model().parameter_count());
  const Arithmetic arithmetic = ArithmeticOf(step.model(), dtype);
  if (!arithmetic.remark.empty()) std::printf("# %s\n", arithmetic.remark.c_str());
  const OnednnFloor floor(network, step.model().dtype(), batch);
  PrintParts(floor);
  std::fflush(stdout);

  std::vector<std::function<void()>> sides = {[&] { step.Run(); }, [&] { floor.Run(); }};
  // A GradientTree needs the gradients of parts of the batch.
  std::optional<TrainingStep> deterministic;
  if (!network.needs_whole_share) {
    deterministic.emplace(job, settings.step, images, type, kLeaves);
    sides.emplace_back([&] { deterministic->Run(); });
  }
  const size_t own = sides.size();
  peers.AddSides(sides);
  const Warmth warmth = settings.peers.empty() ? Warmth::kAsItIs : Warmth::kWarm;
  const std::vector<double> us = MeasureInTurn(job.world(), sides, settings.least_rounds, warmth);
  const double images_us = batch * 1e6, speed = images_us / us[0];
  json row = {
      {"model", settings.step.model},
      {"dtype", dtype},
      {"computed_in", arithmetic.computed_in},
      {"threads", settings.threads},
      {"batch", batch},
      {"input", models::ToString(network.input)},
      {"isa", models::onednn::InstructionSet()},
      {"onednn", models::onednn::Version()},
      {"images_per_s", speed},
      {"floor_images_per_s", images_us / us[1]},
      {"share", us[1] / us[0]},
      {"peers", peers.Rows(us.data() + own, images_us, speed)}};
  if (deterministic) row["deterministic_images_per_s"] = images_us / us[2];
  return row;
}

void PrintRow(const json& row) {
  std::printf(
      "%-8s %-5s %8s %6s %10s %16s %7s %23s\n", "model", "dtype", "threads", "batch", "images/s",
      "floor images/s", "share", "deterministic images/s");
  std::printf(
      "%-8s %-5s %8d %6d %10.1f %16.1f %7.3f", row["model"].get<std::string>().c_str(),
      row["dtype"].get<std::string>().c_str(), row["threads"].get<int>(), row["batch"].get<int>(),
      row["images_per_s"].get<double>(), row["floor_images_per_s"].get<double>(),
      row["share"].get<double>());
  if (row.contains("deterministic_images_per_s"))
    std::printf(" %23.1f\n", row["deterministic_images_per_s"].get<double>());
  else
    std::printf(" %23s\n", "-");
  for (const json& peer : row["peers"]) {
    for (const auto& [variant, speed] : peer["variants"].items())
      std::printf(
          "  %-25s %-16s %10.1f images/s, ratio %.2f\n", peer["name"].get<std::string>().c_str(),
          variant.c_str(), speed.get<double>(),
          row["images_per_s"].get<double>() / speed.get<double>());
  }
  std::fflush(stdout);
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown CPU";
}

// Limits the peers to the instruction set of this process.
std::vector<std::string> LimitPeers() {
  const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (limit == nullptr) limit = std::getenv("DNNL_MAX_CPU_ISA");
  if (limit == nullptr) return PeerEnvironment("", "");
  const std::vector<std::string> environment =
      PeerEnvironment(limit, models::onednn::InstructionSet());
  std::string text;
  for (const std::string& entry : environment)
    if (entry.find('=') != std::string::npos) text += " " + entry;
  std::printf("# peers run with%s\n", text.c_str());
  return environment;
}

json MeasureAll(Context& job, Settings settings) {
  omp_set_num_threads(settings.threads);
  std::printf(
      "# %s, oneDNN %s, instruction set %s\n", CpuModel().c_str(),
      models::onednn::Version().c_str(), models::onednn::InstructionSet().c_str());
  if (!settings.peers.empty()) settings.peer_environment = LimitPeers();
  if (settings.step.batch == 0)
    settings.step.batch = NetworkOf(settings.step).needs_whole_share ? 32 : 1024;
  json rows = json::array();
  for (const std::string& dtype : settings.dtypes) {
    rows.push_back(Measure(job, settings, dtype));
    rows.back()["cpu"] = CpuModel();
    PrintRow(rows.back());
  }
  return rows;
}

}  // namespace

namespace {

models::SequentialOptions OptionsFor(
    const models::Network& network, uint64_t share, const StepSettings& settings, DType dtype) {
  models::SequentialOptions options = models::OptionsFor(network, share, /*seed=*/1);
  options.dtype = dtype;
  models::ChunkPlan plan = {options.micro_batch, options.micro_batches};
  if (!network.needs_whole_share) plan = models::PlanChunks(share);
  if (settings.micro_batch > 0) plan = {settings.micro_batch, settings.micro_batches};
  options.micro_batch = plan.micro_batch;
  options.micro_batches = plan.micro_batches;
  return options;
}

// The optimizer of the network's recipe, with another learning rate. The images are made up, so the
// loss could diverge. A diverging loss would be computed at another speed.
std::unique_ptr<models::RateOptimizer> OptimizerOf(
    const models::Recipe& recipe, models::Sequential& model) {
  models::OptimizerSettings settings;
  settings.learning_rate = recipe.optimizer == "adam" ? 1e-3 : 1e-2;
  if (recipe.momentum != 0) settings.momentum = recipe.momentum;
  return models::MakeOptimizer(
      recipe.optimizer, model.parameters(), model.parameter_shapes(), settings);
}

}  // namespace

models::Network NetworkOf(const StepSettings& settings) {
  return models::NetworkByName(
      settings.model, {.classes = settings.classes, .image = settings.image});
}

Images MadeUpImages(const models::Network& network, int count) {
  const auto classes = static_cast<int>(network.layers.back()->OutputShape({}).count());
  Images images = {network.input, {}, {}};
  const auto pixels = static_cast<uint64_t>(count) * network.input.count();
  for (uint64_t i = 0; i < pixels; ++i)
    images.pixels.push_back(static_cast<uint8_t>((i + 1) * 2654435761u >> 24));
  for (int i = 0; i < count; ++i) images.labels.push_back(i % classes);
  return images;
}

TrainingStep::TrainingStep(
    Context& job, const StepSettings& settings, const Images& images, DType dtype,
    std::optional<int> leaves)
    : network_(NetworkOf(settings)),
      model_(
          network_.input, std::move(network_.layers),
          OptionsFor(
              network_, models::GradientTree::LargestLeaf(images.labels.size(), leaves.value_or(1)),
              settings, dtype)),
      optimizer_(OptimizerOf(network_.recipe, model_)) {
  if (leaves) tree_.emplace(model_.parameters(), *leaves, job);
  replica_.emplace(
      job.world(), model_, *optimizer_, models::ReplicaOptions{.tree = tree_ ? &*tree_ : nullptr});
  batch_.examples = batch_.global_batch = images.labels.size();
  batch_.targets.labels = images.labels;
  batch_.write_inputs = [&images](size_t first, size_t count, float* inputs) {
    const size_t pixels = images.shape.count();
    models::BytesToFloats(images.pixels.data() + first * pixels, count * pixels, inputs);
  };
}

void TrainingStep::Run() { models::TrainStep(*replica_, batch_, loss_, {}); }

}  // namespace dtrun::bench

using dtrun::bench::OptionSet;
using dtrun::bench::Range;
using dtrun::bench::Words;

int main(int argc, char** argv) {
  dtrun::bench::Settings settings;
  OptionSet options(
      "A training step of a network, beside what oneDNN's primitives alone need for its products, "
      "and "
      "beside other frameworks.",
      "model_perf");
  std::string networks;
  for (const std::string& name : dtrun::models::NetworkNames()) networks += " " + name;
  options.Add("--model", &settings.step.model, "the network, one of" + networks);
  options.NameValue("--model", "NAME");
  options.Add("--dtype", &settings.dtypes, "what it computes in", Words{"f32", "bf16"});
  options.Add(
      "--image", &settings.step.image, "height and width of an image; 0: the network's own",
      Range<int>{0, 10'000});
  options.Add(
      "--classes", &settings.step.classes, "0: the network's own", Range<int>{0, 1'000'000});
  options.Add(
      "--batch", &settings.step.batch, "examples of a step; 0: 1024, for ResNets 32",
      Range<int>{0, 1'000'000});
  options.Add("--threads", &settings.threads, "of the computation", Range<int>{1, 1024});
  options.Add(
      "--micro-batch", &settings.step.micro_batch, "examples at a time; 0: as in training",
      Range<int>{0, 1'000'000});
  options.Add(
      "--micro-batches", &settings.step.micro_batches, "of a chunk; with --micro-batch",
      Range<int>{1, 1'000'000});
  options.AddRepeated(
      "--peer", settings.peers,
      "command of another framework's step, measured in turn (bench/peers); repeatable");
  options.NameValue("--peer", "COMMAND");
  options.Add(
      "--rounds", &settings.least_rounds, "rounds of all sides, at least", Range<int>{1, 10000});
  return dtrun::bench::Main(
      options,
      {"model_perf", [&](dtrun::Context& job) { return dtrun::bench::MeasureAll(job, settings); },
       [](dtrun::Context& job) -> std::string {
         return job.size() == 1 ? "" : "start it alone: it measures one process";
       }},
      argc, argv);
}
