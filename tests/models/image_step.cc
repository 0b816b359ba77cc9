#include "tests/models/image_step.h"

#include <algorithm>
#include <vector>

#include "models/data/dataset.h"

namespace dtrun::models {
namespace {

// Copies images into the network's input. Images of an earlier chunk may remain after them. The
// remaining images get no gradient and are not counted.
template <typename IndexOf>
void LoadChunk(
    Sequential& model, const Images& images, size_t count, const IndexOf& index_of,
    uint8_t* labels) {
  const size_t pixels = images.pixels_per_image();
  for (size_t i = 0; i < count; ++i) {
    const size_t image = index_of(i);
    BytesToFloats(images.pixels.data() + image * pixels, pixels, model.input() + i * pixels);
    labels[i] = images.labels[image];
  }
}

Tally TrainChunk(
    Sequential& model, const Pass& pass, std::span<const uint8_t> labels, uint64_t global_batch,
    const OnReady& on_ready) {
  const auto examples = static_cast<int>(labels.size());
  model.Forward(pass, examples);
  const Tally tally = SoftmaxCrossEntropy(
      model.output(), labels.data(), labels.size(), model.classes(),
      1.0f / static_cast<float>(global_batch), model.output_gradient());
  const size_t filled = labels.size() * model.classes();
  const size_t all = size_t(model.chunk()) * model.classes();
  std::fill(model.output_gradient() + filled, model.output_gradient() + all, 0.0f);
  model.Backward(pass, examples, on_ready);
  return tally;
}

// The weights must be prepared.
Tally ComputeShare(
    Sequential& model, const Images& images, const Share& share, const OnReady& on_ready) {
  if (share.examples.empty() && !model.synchronizes()) {
    Pass pass;
    pass.training = true;
    pass.regularization_scale = share.regularization_scale;
    model.ZeroGradients(pass, on_ready);
    return {};
  }
  const auto chunk = size_t(model.chunk());
  std::vector<uint8_t> labels(chunk);
  Tally tally;
  // Runs at least once: a rank without examples may have to exchange data.
  for (size_t done = 0; done == 0 || done < share.examples.size(); done += chunk) {
    const auto examples =
        share.examples.subspan(done, std::min(chunk, share.examples.size() - done));
    LoadChunk(
        model, images, examples.size(), [&](size_t i) { return examples[i]; }, labels.data());
    Pass pass;
    pass.training = true;
    pass.step = share.step;
    pass.first_example = share.first_position + static_cast<uint32_t>(done);
    pass.regularization_scale = share.regularization_scale;
    pass.first = done == 0;
    pass.last = done + examples.size() == share.examples.size();
    tally +=
        TrainChunk(model, pass, {labels.data(), examples.size()}, share.global_batch, on_ready);
  }
  return tally;
}

}  // namespace

Images MadeUpImages(uint64_t count, int height, int width, int classes) {
  Images images;
  images.count = count;
  images.height = height;
  images.width = width;
  for (uint64_t i = 0; i < count * images.pixels_per_image(); ++i)
    images.pixels.push_back(uint8_t((i + 1) * 2654435761u >> 24));
  for (uint64_t i = 0; i < count; ++i) images.labels.push_back(uint8_t(i * 7 % uint64_t(classes)));
  return images;
}

Tally ComputeGradients(
    Sequential& model, const Images& images, const Share& share, const OnReady& on_ready) {
  model.PrepareWeights();
  return ComputeShare(model, images, share, on_ready);
}

Tally Evaluate(Sequential& model, const Images& images, const Range& range) {
  model.PrepareWeights();
  std::vector<uint8_t> labels(size_t(model.chunk()));
  Tally tally;
  for (uint64_t begin = range.begin; begin < range.end;) {
    const size_t count = std::min<uint64_t>(size_t(model.chunk()), range.end - begin);
    LoadChunk(
        model, images, count, [&](size_t i) { return begin + i; }, labels.data());
    model.Forward(Pass{}, static_cast<int>(count));
    tally += SoftmaxCrossEntropy(model.output(), labels.data(), count, model.classes());
    begin += count;
  }
  return tally;
}

}  // namespace dtrun::models
