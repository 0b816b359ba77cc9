#include "bench/training_step.h"

#include <utility>

#include "models/data/to_floats.h"
#include "models/optim/by_name.h"
#include "models/train/chunk_plan.h"
#include "models/train/steps.h"

namespace dtrun::bench {
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

// As the network's recipe has it, but for the rate: the images are made up, and a loss that runs
// away would be computed at another speed.
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
