// A training step of a network, as it is and deterministic, in turn with what oneDNN's primitives
// alone need for its products.

#include <dtrun/dtrun.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/onednn_floor.h"
#include "bench/program.h"
#include "models/data/to_floats.h"
#include "models/layers/sequential.h"
#include "models/losses/sparse_categorical_crossentropy.h"
#include "models/networks/network_c.h"
#include "models/optim/adam.h"
#include "models/train/chunk_plan.h"
#include "models/train/steps.h"

namespace dtrun::bench {
namespace {

using nlohmann::json;

struct Settings {
  std::string model = "C";
  std::vector<std::string> dtypes = {"f32", "bf16"};
  int batch = 1024, threads = 1, least_rounds = 15;
  int micro_batch = 0, micro_batches = 1;
};

constexpr models::Shape kInput = {28, 28, 1};
constexpr int kClasses = 10;

struct Images {
  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
};

Images MadeUpImages(int count) {
  Images images;
  const auto pixels = static_cast<uint64_t>(count) * kInput.count();
  for (uint64_t i = 0; i < pixels; ++i)
    images.pixels.push_back(static_cast<uint8_t>((i + 1) * 2654435761u >> 24));
  for (int i = 0; i < count; ++i) images.labels.push_back(i % kClasses);
  return images;
}

constexpr int kLeaves = 8;  // of a deterministic step

models::SequentialOptions OptionsFor(uint64_t batch, const Settings& settings, DType dtype) {
  models::ChunkPlan plan = models::PlanChunks(batch);
  if (settings.micro_batch > 0) plan = {settings.micro_batch, settings.micro_batches};
  return {plan.micro_batch, plan.micro_batches, /*seed=*/1, dtype};
}

// A step as a rank takes it: images to floats, forward, loss, backward, reduction, Adam.
class TrainingStep {
 public:
  TrainingStep(
      Context& job, const Settings& settings, const Images& images, DType dtype,
      std::optional<int> leaves = {})
      : model_(
            kInput, models::NetworkC(kClasses),
            OptionsFor(
                models::GradientTree::LargestLeaf(images.labels.size(), leaves.value_or(1)),
                settings, dtype)),
        adam_(model_.parameters(), {}) {
    if (leaves) tree_.emplace(model_.parameters(), *leaves, job);
    replica_.emplace(
        job.world(), model_, adam_, models::ReplicaOptions{.tree = tree_ ? &*tree_ : nullptr});
    batch_.examples = batch_.global_batch = images.labels.size();
    batch_.targets.labels = images.labels;
    batch_.write_inputs = [&images](size_t first, size_t count, float* inputs) {
      const size_t pixels = kInput.count();
      models::BytesToFloats(images.pixels.data() + first * pixels, count * pixels, inputs);
    };
  }

  void Run() { models::TrainStep(*replica_, batch_, loss_, {}); }

 private:
  models::Sequential model_;
  models::Adam adam_;
  models::SparseCategoricalCrossentropy loss_;
  std::optional<models::GradientTree> tree_;
  std::optional<models::Replica> replica_;
  models::ReplicaBatch batch_;
};

void PrintParts(const OnednnFloor& floor) {
  for (const FloorPart& part : floor.parts())
    std::printf(
        "#   %-40s %4d at a time %8.2f us per image\n", part.name.c_str(), part.micro_batch,
        part.us_per_example);
}

json Measure(Context& job, const Settings& settings, const std::string& dtype) {
  const DType type = dtype == "bf16" ? DType::kBF16 : DType::kF32;
  const Images images = MadeUpImages(settings.batch);
  TrainingStep step(job, settings, images, type);
  TrainingStep deterministic(job, settings, images, type, kLeaves);
  const OnednnFloor floor(kInput, models::NetworkC(kClasses), type, settings.batch);
  PrintParts(floor);
  const std::vector<double> us = MeasureInTurn(
      job.world(), {[&] { step.Run(); }, [&] { floor.Run(); }, [&] { deterministic.Run(); }},
      settings.least_rounds);
  const double images_us = settings.batch * 1e6;
  return {
      {"model", settings.model},
      {"dtype", dtype},
      {"threads", settings.threads},
      {"batch", settings.batch},
      {"images_per_s", images_us / us[0]},
      {"floor_images_per_s", images_us / us[1]},
      {"share", us[1] / us[0]},
      {"deterministic_images_per_s", images_us / us[2]}};
}

json MeasureAll(Context& job, const Settings& settings) {
  omp_set_num_threads(settings.threads);
  json rows = json::array();
  for (const std::string& dtype : settings.dtypes) {
    rows.push_back(Measure(job, settings, dtype));
    const json& row = rows.back();
    std::printf(
        "%-6s %-5s %8s %6s %10s %16s %7s %23s\n%-6s %-5s %8d %6d %10.0f %16.0f %7.3f %23.0f\n",
        "model", "dtype", "threads", "batch", "images/s", "floor images/s", "share",
        "deterministic images/s", settings.model.c_str(), dtype.c_str(), settings.threads,
        settings.batch, row["images_per_s"].get<double>(), row["floor_images_per_s"].get<double>(),
        row["share"].get<double>(), row["deterministic_images_per_s"].get<double>());
    std::fflush(stdout);
  }
  return rows;
}

}  // namespace
}  // namespace dtrun::bench

int main(int argc, char** argv) {
  dtrun::bench::Settings settings;
  CLI::App app(
      "A training step of a network, beside what oneDNN's primitives alone need for its products.",
      "model_perf");
  app.add_option("--model", settings.model, "the network")
      ->check(CLI::IsMember({"C"}))
      ->capture_default_str();
  app.add_option("--dtype", settings.dtypes, "what it computes in")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app.add_option("--batch", settings.batch, "examples of a step")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--threads", settings.threads, "of the computation")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--micro-batch", settings.micro_batch, "examples at a time; 0: as in training")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--micro-batches", settings.micro_batches, "of a chunk; with --micro-batch")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--rounds", settings.least_rounds, "rounds of both, at least")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  return dtrun::bench::Main(
      app,
      {"model_perf", [&](dtrun::Context& job) { return dtrun::bench::MeasureAll(job, settings); },
       [](dtrun::Context& job) -> std::string {
         return job.size() == 1 ? "" : "start it alone: it measures one process";
       }},
      argc, argv);
}
