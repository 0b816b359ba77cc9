#include "tests/models/layers/reference_network.h"

#include <algorithm>
#include <cmath>

#include "models/layers/activations.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/random/philox.h"
#include "tests/models/layers/reference_layers.h"

namespace dtrun::testing {
namespace {

using models::Activation;
using models::Shape;

models::Window WindowOf(const LayerText& layer) {
  return {layer.size, layer.options.stride, layer.options.padding};
}

Activations DropSome(Activations x, double rate, uint32_t layer, const Place& place) {
  if (!place.training) return x;
  for (size_t i = 0; i < x.values.size(); ++i)
    x.values[i] = ReferenceKeeps(place, layer, i, rate) ? x.values[i] / (1 - rate) : 0;
  return x;
}

}  // namespace

LayerText Conv(int filters, int size, bool relu) { return {LayerText::kConv, filters, size, relu}; }
LayerText StridedConv(int filters, int size, const models::Conv2DOptions& options) {
  return {LayerText::kConv, filters, size, options.activation == Activation::kRelu, 0, options};
}
LayerText Pool(int window) { return {LayerText::kPool, window}; }
LayerText Drop(double rate) { return {LayerText::kDropout, 0, 0, false, rate}; }
LayerText Fully(int units, bool relu) { return {LayerText::kDense, units, 0, relu}; }

models::LayerList MakeLayers(const std::vector<LayerText>& network) {
  models::LayerList layers;
  for (const LayerText& l : network) {
    const Activation activation = l.relu ? Activation::kRelu : Activation::kNone;
    switch (l.kind) {
      case LayerText::kConv: {
        models::Conv2DOptions options = l.options;
        options.activation = activation;
        layers.push_back(std::make_unique<models::Conv2D>(l.n, l.size, options));
        break;
      }
      case LayerText::kPool: layers.push_back(std::make_unique<models::MaxPool2D>(l.n)); break;
      case LayerText::kDropout: layers.push_back(std::make_unique<models::Dropout>(l.rate)); break;
      case LayerText::kDense:
        layers.push_back(std::make_unique<models::Dense>(l.n, activation));
        break;
    }
  }
  return layers;
}

double ReferenceLoss(
    const Shape& input, const std::vector<LayerText>& network,
    const std::vector<double>& parameters, const std::vector<double>& example, size_t label,
    const Place& place) {
  Activations x{input, example};
  const double* parameter = parameters.data();
  for (uint32_t i = 0; i < network.size(); ++i) {
    const LayerText& layer = network[i];
    switch (layer.kind) {
      case LayerText::kConv:
        x = Convolve(x, layer.n, WindowOf(layer), layer.options.use_bias, parameter);
        if (layer.relu) x = ReluOf(std::move(x));
        break;
      case LayerText::kPool: x = MaxOfWindows(x, {layer.n, layer.n}); break;
      case LayerText::kDropout: x = DropSome(x, layer.rate, i, place); break;
      case LayerText::kDense:
        x = Connect(x, layer.n, parameter);
        if (layer.relu) x = ReluOf(std::move(x));
        break;
    }
  }
  return CrossEntropy(x.values, label);
}

// A group of 16 counters makes 64 words, word by word, for 128 elements. The low halves come first,
// then the high halves.
bool ReferenceKeeps(const Place& place, uint32_t layer, size_t element, double rate) {
  const auto group = uint32_t(element / 128), in_group = uint32_t(element % 128);
  const uint32_t word = in_group % 64, half = in_group / 64;
  const auto words = models::Philox4x32(
      {group * 16 + word % 16, place.position, uint32_t(place.step),
       models::RandomDomain(models::RandomUse::kDropout, layer)},
      models::KeyOfSeed(place.seed));
  const uint32_t number = words[word / 16] >> (16 * half) & 0xffff;
  return number < std::lround((1 - rate) * 65536);
}

}  // namespace dtrun::testing
