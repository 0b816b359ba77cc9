#include "models/train/step.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "models/layers/kernels.h"

namespace dtrun::models {
namespace {

// Labels of the micro-batch in the network's input. Examples of an earlier one that lie behind them
// fill it up: they get no gradient and are counted nowhere.
template <typename IndexOf>
void LoadMicroBatch(
    Sequential& model, const Images& images, size_t count, const IndexOf& index_of,
    uint8_t* labels) {
  const size_t pixels = images.pixels_per_image();
  for (size_t i = 0; i < count; ++i) {
    const size_t image = index_of(i);
    PixelsToFloats(images.pixels.data() + image * pixels, pixels, model.input() + i * pixels);
    labels[i] = images.labels[image];
  }
}

Tally TrainMicroBatch(
    Sequential& model, const Pass& pass, std::span<const uint8_t> labels, uint64_t global_batch,
    const std::function<void(size_t)>& on_ready) {
  model.Forward(pass);
  const Tally tally = SoftmaxCrossEntropy(
      model.output(), labels.data(), labels.size(), model.classes(),
      1.0f / static_cast<float>(global_batch), model.output_gradient());
  const size_t filled = labels.size() * model.classes();
  const size_t all = size_t(model.micro_batch()) * model.classes();
  std::fill(model.output_gradient() + filled, model.output_gradient() + all, 0.0f);
  model.Backward(pass, on_ready);
  return tally;
}

// An empty share: its part of the sum is zero.
void ZeroGradients(Sequential& model, const std::function<void(size_t)>& on_ready) {
  std::vector<Parameter>& parameters = model.parameters();
  for (size_t i = parameters.size(); i-- > 0;) {
    std::memset(parameters[i].gradient.data, 0, parameters[i].gradient.bytes());
    on_ready(i);
  }
}

constexpr size_t kLargestMicroBatch = 4096;

}  // namespace

int MicroBatchFor(uint64_t examples, int limit) {
  const auto most = static_cast<uint64_t>(limit);
  const uint64_t pieces = std::max<uint64_t>((examples + most - 1) / most, 1);
  return static_cast<int>(std::max<uint64_t>((examples + pieces - 1) / pieces, 1));
}

Tally ComputeGradients(
    Sequential& model, const Images& images, const Share& share,
    const std::function<void(size_t)>& on_ready) {
  if (share.examples.empty()) {
    ZeroGradients(model, on_ready);
    return {};
  }
  model.PrepareWeights();
  uint8_t labels[kLargestMicroBatch];
  const auto micro_batch = size_t(model.micro_batch());
  Tally tally;
  for (size_t done = 0; done < share.examples.size(); done += micro_batch) {
    const auto examples =
        share.examples.subspan(done, std::min(micro_batch, share.examples.size() - done));
    LoadMicroBatch(
        model, images, examples.size(), [&](size_t i) { return examples[i]; }, labels);
    Pass pass;
    pass.training = true;
    pass.step = share.step;
    pass.first_example = share.first_position + static_cast<uint32_t>(done);
    pass.first = done == 0;
    pass.last = done + examples.size() == share.examples.size();
    tally += TrainMicroBatch(model, pass, {labels, examples.size()}, share.global_batch, on_ready);
  }
  return tally;
}

Tally Evaluate(Sequential& model, const Images& images, const Range& range) {
  model.PrepareWeights();
  uint8_t labels[kLargestMicroBatch];
  Tally tally;
  for (uint64_t begin = range.begin; begin < range.end;) {
    const size_t count = std::min<uint64_t>(size_t(model.micro_batch()), range.end - begin);
    LoadMicroBatch(
        model, images, count, [&](size_t i) { return begin + i; }, labels);
    model.Forward(Pass{});
    tally += SoftmaxCrossEntropy(model.output(), labels, count, model.classes());
    begin += count;
  }
  return tally;
}

}  // namespace dtrun::models
