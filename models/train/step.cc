#include "models/train/step.h"

#include <algorithm>
#include <vector>

#include "models/layers/kernels.h"

namespace dtrun::models {
namespace {

// Puts images into the network's input. Those of an earlier chunk that lie behind them fill it up:
// they get no gradient and are counted nowhere.
template <typename IndexOf>
void LoadChunk(
    Sequential& model, const Images& images, size_t count, const IndexOf& index_of,
    uint8_t* labels) {
  const size_t pixels = images.pixels_per_image();
  for (size_t i = 0; i < count; ++i) {
    const size_t image = index_of(i);
    PixelsToFloats(images.pixels.data() + image * pixels, pixels, model.input() + i * pixels);
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

constexpr uint64_t kLargestMicroBatch = 16, kMicroBatches = 8;
constexpr uint64_t kLargestChunk = kLargestMicroBatch * kMicroBatches;

uint64_t DivideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// With weights that are prepared.
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
  // At least once: a rank without examples may have to exchange data.
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

// The limits suit network C: activations of 16 examples nearly fit a core's second-level cache, and
// per pass of the dense layers 14 MB of kernels and gradients come from memory. One training step
// of 1,024 images on one thread of a Zen 5 core, us per image, micro-batch x micro-batches per
// chunk: 16x8 332, 8x16 336, 32x4 347, 32x1 353; oneDNN's primitives alone, in the same minute,
// 312.
ChunkPlan PlanChunks(uint64_t examples) {
  const uint64_t n = std::max<uint64_t>(examples, 1);
  const uint64_t chunk = DivideUp(n, DivideUp(n, kLargestChunk));
  const uint64_t micro_batches = DivideUp(chunk, kLargestMicroBatch);
  return {static_cast<int>(DivideUp(chunk, micro_batches)), static_cast<int>(micro_batches)};
}

Tally ComputeGradients(
    Sequential& model, const Images& images, const Share& share, const OnReady& on_ready) {
  model.PrepareWeights();
  return ComputeShare(model, images, share, on_ready);
}

Tally ComputeGradients(
    Sequential& model, const Images& images, const Share& share, GradientTree& tree,
    const OnReady& on_ready) {
  const auto compute = [&](int leaf, const OnReady& on_leaf_ready) {
    const Range positions = tree.PositionsOf(leaf, share.global_batch);
    Share part = share;
    part.first_position = static_cast<uint32_t>(positions.begin);
    part.examples =
        share.examples.subspan(positions.begin - share.first_position, positions.size());
    return ComputeShare(model, images, part, on_leaf_ready);
  };
  model.PrepareWeights();
  return tree.Sum(compute, on_ready);
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
