#include "models/synthetic/made_up_steps.h"

#include <algorithm>

#include "models/layers/loss.h"
#include "models/random/philox.h"

namespace dtrun::models {
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

// The same numbers in every chunk: they stay where they are from step to step.
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

}  // namespace dtrun::models
