#include "models/programs/predictions.h"

#include <dtrun/objects.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <utility>

#include "models/data/dataset.h"

namespace dtrun::models {
namespace {

// softmax(log(p)) = p, so probabilities can be treated as logits from here on.
void ToLogits(std::span<float> probabilities) {
  for (float& p : probabilities) p = std::log(p);
}

void AppendSoftmax(std::span<const float> logits, std::vector<float>& out) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(double(logit) - double(largest));
  for (float logit : logits)
    out.push_back(static_cast<float>(std::exp(double(logit) - double(largest)) / sum));
}

bool EndsWithSoftmax(const Sequential& model) {
  return !model.layers().empty() && model.layers().back()->kind() == "softmax";
}

}  // namespace

Predictions Predict(Sequential& model, const Images& images, const Range& range) {
  Predictions result;
  const size_t pixels = images.pixels_per_image(), classes = model.classes();
  result.probabilities.reserve(range.size() * classes);
  model.PrepareWeights();
  for (uint64_t begin = range.begin; begin < range.end;) {
    const size_t count = std::min<uint64_t>(size_t(model.chunk()), range.end - begin);
    BytesToFloats(images.pixels.data() + begin * pixels, count * pixels, model.input());
    model.Forward(Pass{}, static_cast<int>(count));
    std::vector<float> logits(model.output(), model.output() + count * classes);
    if (EndsWithSoftmax(model)) ToLogits(logits);
    result.tally +=
        SoftmaxCrossEntropy(logits.data(), images.labels.data() + begin, count, classes);
    for (size_t i = 0; i < count; ++i)
      AppendSoftmax(std::span(logits).subspan(i * classes, classes), result.probabilities);
    begin += count;
  }
  return result;
}

Predictions GatherPredictions(Communicator& world, Predictions mine) {
  double sums[] = {
      mine.tally.loss, static_cast<double>(mine.tally.correct),
      static_cast<double>(mine.tally.examples)};
  world.AllReduce(Buffer(sums, 3), ReduceOp::kSum);
  Predictions all;
  all.tally = {sums[0], static_cast<uint64_t>(sums[1]), static_cast<uint64_t>(sums[2])};
  all.probabilities = AllGatherV(world, std::move(mine.probabilities)).data;
  return all;
}

std::string ToCsv(const std::vector<float>& probabilities, size_t classes) {
  std::string text = "prediction";
  for (size_t k = 0; k < classes; ++k) text += ",p" + std::to_string(k);
  text += '\n';
  for (auto row = probabilities.begin(); row != probabilities.end(); row += ptrdiff_t(classes)) {
    text += std::to_string(std::max_element(row, row + ptrdiff_t(classes)) - row);
    for (auto p = row; p != row + ptrdiff_t(classes); ++p) {
      // The fewest digits that give back the same float.
      char digits[32];
      text.append(",").append(digits, std::to_chars(digits, digits + sizeof digits, *p).ptr);
    }
    text += '\n';
  }
  return text;
}

}  // namespace dtrun::models
