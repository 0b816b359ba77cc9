#include "tests/models/layers/reference_layers.h"

#include <algorithm>
#include <cmath>

namespace dtrun::testing {
namespace {

using models::Shape;
using models::Window;

Activations Empty(const Shape& shape) { return {shape, std::vector<double>(shape.count())}; }

// The reach of the windows over the upper or left edge, and the number of windows, by counting.
struct Along {
  Along(int input, const Window& window) {
    int after = before = window.padding.is_same() ? 0 : window.padding.pixels();
    if (window.padding.is_same()) {
      while (input > windows * window.stride) ++windows;
      while ((windows - 1) * window.stride + window.size > input + before + after)
        ++(before < after ? before : after);
    } else {
      while (windows * window.stride + window.size <= input + before + after) ++windows;
    }
  }

  int before = 0, windows = 0;
};

// Calls body(row in the kernel, column in the kernel, row, column) for the window's part inside the
// image.
template <typename Body>
void ForEachInside(const Shape& shape, const Window& window, int top, int left, const Body& body) {
  for (int i = 0; i < window.size; ++i) {
    for (int j = 0; j < window.size; ++j) {
      const int h = top + i, w = left + j;
      if (h >= 0 && h < shape.height && w >= 0 && w < shape.width) body(i, j, h, w);
    }
  }
}

// One output per window and channel: y(h, w, c) = value(top, left, c).
template <typename Value>
Activations MapWindows(const Shape& shape, const Window& window, int channels, const Value& value) {
  const Along rows(shape.height, window), columns(shape.width, window);
  Activations y = Empty({rows.windows, columns.windows, channels});
  for (int h = 0; h < y.shape.height; ++h) {
    for (int w = 0; w < y.shape.width; ++w) {
      for (int c = 0; c < channels; ++c) {
        y.at(h, w, c) =
            value(h * window.stride - rows.before, w * window.stride - columns.before, c);
      }
    }
  }
  return y;
}

}  // namespace

Activations Convolve(
    Activations x, int filters, const Window& window, bool use_bias, const double*& parameter) {
  const int channels = x.shape.channels, size = window.size;
  const double* kernel = parameter;
  const double* bias = kernel + size * size * channels * filters;
  parameter = bias + (use_bias ? filters : 0);
  return MapWindows(x.shape, window, filters, [&](int top, int left, int f) {
    double sum = use_bias ? bias[f] : 0;
    ForEachInside(x.shape, window, top, left, [&](int i, int j, int h, int w) {
      for (int c = 0; c < channels; ++c)
        sum += x.at(h, w, c) * kernel[((i * size + j) * channels + c) * filters + f];
    });
    return sum;
  });
}

Activations MaxOfWindows(Activations x, const Window& window) {
  return MapWindows(x.shape, window, x.shape.channels, [&](int top, int left, int c) {
    double best = -INFINITY;
    ForEachInside(x.shape, window, top, left, [&](int, int, int h, int w) {
      best = std::max(best, x.at(h, w, c));
    });
    return best;
  });
}

Activations MeanOfWindows(Activations x, const Window& window) {
  return MapWindows(x.shape, window, x.shape.channels, [&](int top, int left, int c) {
    double sum = 0;
    int count = 0;
    ForEachInside(x.shape, window, top, left, [&](int, int, int h, int w) {
      sum += x.at(h, w, c);
      ++count;
    });
    return sum / count;
  });
}

Activations MeanOfPixels(Activations x) {
  Activations y = Empty({1, 1, x.shape.channels});
  const auto channels = size_t(x.shape.channels);
  for (size_t i = 0; i < x.values.size(); ++i)
    y.values[i % channels] += x.values[i] / double(x.shape.pixels());
  return y;
}

Activations Connect(const Activations& x, int units, const double*& parameter) {
  const double* kernel = parameter;
  const double* bias = kernel + x.values.size() * size_t(units);
  parameter = bias + units;
  Activations y = Empty({1, 1, units});
  for (int u = 0; u < units; ++u) {
    double sum = bias[u];
    for (size_t i = 0; i < x.values.size(); ++i)
      sum += x.values[i] * kernel[i * size_t(units) + size_t(u)];
    y.at(0, 0, u) = sum;
  }
  return y;
}

Activations ReluOf(Activations x) {
  for (double& value : x.values) value = std::max(value, 0.0);
  return x;
}

Activations SoftmaxOfChannels(Activations x) {
  const auto channels = size_t(x.shape.channels);
  for (size_t i = 0; i < x.values.size(); i += channels) {
    double sum = 0;
    for (size_t c = 0; c < channels; ++c) sum += std::exp(x.values[i + c]);
    for (size_t c = 0; c < channels; ++c) x.values[i + c] = std::exp(x.values[i + c]) / sum;
  }
  return x;
}

Activations Sum(Activations a, const Activations& b) {
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] += b.values[i];
  return a;
}

double CrossEntropy(const std::vector<double>& logits, size_t label) {
  double sum = 0;
  for (double logit : logits) sum += std::exp(logit);
  return std::log(sum) - logits[label];
}

Moments MomentsOf(Batch batch) {
  const auto channels = size_t(batch[0].shape.channels);
  const double count = double(batch.size() * batch[0].shape.pixels());
  Moments moments{std::vector<double>(channels), std::vector<double>(channels)};
  for (const Activations& x : batch) {
    for (size_t i = 0; i < x.values.size(); ++i) moments.mean[i % channels] += x.values[i] / count;
  }
  for (const Activations& x : batch) {
    for (size_t i = 0; i < x.values.size(); ++i)
      moments.variance[i % channels] +=
          std::pow(x.values[i] - moments.mean[i % channels], 2) / count;
  }
  return moments;
}

Batch Normalize(Batch batch, const Moments& moments, double epsilon, const double*& parameter) {
  const auto channels = size_t(batch[0].shape.channels);
  const double *gamma = parameter, *beta = gamma + channels;
  parameter = beta + channels;
  for (Activations& x : batch) {
    for (size_t i = 0; i < x.values.size(); ++i) {
      const size_t c = i % channels;
      x.values[i] =
          gamma[c] * (x.values[i] - moments.mean[c]) / std::sqrt(moments.variance[c] + epsilon) +
          beta[c];
    }
  }
  return batch;
}

}  // namespace dtrun::testing
