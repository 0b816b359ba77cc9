#include "tests/models/reference_network.h"

#include <algorithm>
#include <cmath>

#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/dropout.h"
#include "models/layers/max_pool2d.h"
#include "models/random/philox.h"

namespace dtrun::testing {
namespace {

using models::Activation;
using models::Shape;

// An activation with its shape, channels last.
struct Activations {
  Shape shape;
  std::vector<double> values;

  double& at(int h, int w, int c) {
    return values
        [(size_t(h) * size_t(shape.width) + size_t(w)) * size_t(shape.channels) + size_t(c)];
  }
};

Activations Empty(const Shape& shape) { return {shape, std::vector<double>(shape.count())}; }

double MaybeRelu(double x, bool relu) { return relu ? std::max(x, 0.0) : x; }

// How far the windows reach over the upper or left edge, and how many there are: by counting.
struct Along {
  Along(int input, const LayerText& layer) {
    const models::Conv2DOptions& o = layer.options;
    int after = before = o.padding.is_same() ? 0 : o.padding.pixels();
    if (o.padding.is_same()) {
      while (input > windows * o.stride) ++windows;
      while ((windows - 1) * o.stride + layer.size > input + before + after)
        ++(before < after ? before : after);
    } else {
      while (windows * o.stride + layer.size <= input + before + after) ++windows;
    }
  }

  int before = 0, windows = 0;
};

Activations Convolve(Activations x, const LayerText& layer, const double*& parameter) {
  const int channels = x.shape.channels, size = layer.size, stride = layer.options.stride;
  const double* kernel = parameter;
  const double* bias = kernel + size * size * channels * layer.n;
  parameter = bias + (layer.options.use_bias ? layer.n : 0);
  const Along rows(x.shape.height, layer), columns(x.shape.width, layer);
  const auto value = [&](int h, int w, int c) {
    const bool inside = h >= 0 && h < x.shape.height && w >= 0 && w < x.shape.width;
    return inside ? x.at(h, w, c) : 0.0;
  };
  Activations y = Empty({rows.windows, columns.windows, layer.n});
  for (int h = 0; h < y.shape.height; ++h) {
    for (int w = 0; w < y.shape.width; ++w) {
      for (int f = 0; f < layer.n; ++f) {
        double sum = layer.options.use_bias ? bias[f] : 0;
        for (int i = 0; i < size; ++i) {
          for (int j = 0; j < size; ++j) {
            for (int c = 0; c < channels; ++c) {
              sum += value(stride * h + i - rows.before, stride * w + j - columns.before, c) *
                     kernel[((i * size + j) * channels + c) * layer.n + f];
            }
          }
        }
        y.at(h, w, f) = MaybeRelu(sum, layer.relu);
      }
    }
  }
  return y;
}

Activations MaxOfWindows(Activations x, int window) {
  Activations y = Empty({x.shape.height / window, x.shape.width / window, x.shape.channels});
  for (int h = 0; h < y.shape.height; ++h) {
    for (int w = 0; w < y.shape.width; ++w) {
      for (int c = 0; c < y.shape.channels; ++c) {
        double best = x.at(h * window, w * window, c);
        for (int p = 1; p < window * window; ++p)
          best = std::max(best, x.at(h * window + p / window, w * window + p % window, c));
        y.at(h, w, c) = best;
      }
    }
  }
  return y;
}

Activations Connect(const Activations& x, const LayerText& layer, const double*& parameter) {
  const double* kernel = parameter;
  const double* bias = kernel + x.values.size() * size_t(layer.n);
  parameter = bias + layer.n;
  Activations y = Empty({1, 1, layer.n});
  for (int u = 0; u < layer.n; ++u) {
    double sum = bias[u];
    for (size_t i = 0; i < x.values.size(); ++i)
      sum += x.values[i] * kernel[i * size_t(layer.n) + size_t(u)];
    y.at(0, 0, u) = MaybeRelu(sum, layer.relu);
  }
  return y;
}

Activations DropSome(Activations x, double rate, uint32_t layer, const Place& place) {
  if (!place.training) return x;
  for (size_t i = 0; i < x.values.size(); ++i)
    x.values[i] = ReferenceKeeps(place, layer, i, rate) ? x.values[i] / (1 - rate) : 0;
  return x;
}

double CrossEntropy(const std::vector<double>& logits, size_t label) {
  double sum = 0;
  for (double logit : logits) sum += std::exp(logit);
  return std::log(sum) - logits[label];
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
      case LayerText::kConv: x = Convolve(x, layer, parameter); break;
      case LayerText::kPool: x = MaxOfWindows(x, layer.n); break;
      case LayerText::kDropout: x = DropSome(x, layer.rate, i, place); break;
      case LayerText::kDense: x = Connect(x, layer, parameter); break;
    }
  }
  return CrossEntropy(x.values, label);
}

// Groups of 16 counters make 64 words, word by word, and 128 elements: the low halves, then the
// high.
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
