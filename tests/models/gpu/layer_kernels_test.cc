// Each kernel of models/gpu/layer_kernels.cu against its definition in f64. The numbers of channels
// are not multiples of a vector or of a warp.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "models/gpu/layer_args.h"
#include "models/layers/cpu_kernels.h"
#include "models/layers/settings.h"
#include "models/random/philox.h"
#include "tests/models/gpu/kernel_rig.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

Sizes AnySizes() { return GENERATE(Sizes{3, 5, 7, 13}, Sizes{1, 1, 1, 1}, Sizes{2, 3, 3, 70}); }

// Results of one operation on exact operands, which every type rounds once.
Doubles RoundedOnce(const Typed& type, Doubles values) {
  for (double& value : values) value = static_cast<double>(type.Rounded(value));
  return values;
}

double Relu(double value) { return std::max(value, 0.0); }

TEST_CASE("layers add a bias, two tensors, or nothing, and apply a ReLU", "[layer_kernels]") {
  const Typed type = AnyType();
  const Sizes sizes = AnySizes();
  const bool relu = GENERATE(false, true);
  const Doubles a = MadeUp(sizes.count(), 1), b = MadeUp(sizes.count(), 2);
  const Doubles bias = MadeUp(sizes.channels, 3);
  Doubles biased(a.size()), sum(a.size()), clipped(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    biased[i] = a[i] + bias[i % sizes.channels];
    sum[i] = a[i] + b[i];
    clipped[i] = Relu(a[i]);
    if (relu) biased[i] = Relu(biased[i]), sum[i] = Relu(sum[i]);
  }
  const auto of_a = type.ToDevice(a), of_b = type.ToDevice(b), y = type.Zeros(a.size());
  const auto biases = Upload(Floats(bias));
  const uint32_t clips = relu ? 1 : 0;
  const auto check = [&](const Doubles& expected) {
    CHECK(type.ToHost(y, a.size()) == RoundedOnce(type, expected));
  };
  RunKernel(
      "dtrun_layer_bias_" + type.name, 2,
      LayerBiasArgs{
          of_a.as<void>(), biases.as<float>(), y.as<void>(), sizes.pixels(), sizes.channels,
          clips});
  check(biased);
  RunKernel(
      "dtrun_layer_add_" + type.name, 2,
      LayerAddArgs{of_a.as<void>(), nullptr, y.as<void>(), sizes.count(), 1});
  check(clipped);
  RunKernel(
      "dtrun_layer_add_" + type.name, 2,
      LayerAddArgs{of_a.as<void>(), of_b.as<void>(), y.as<void>(), sizes.count(), clips});
  check(sum);
  RunKernel(  // in place
      "dtrun_layer_add_" + type.name, 2,
      LayerAddArgs{of_b.as<void>(), of_a.as<void>(), of_b.as<void>(), sizes.count(), clips});
  CHECK(type.ToHost(of_b, a.size()) == RoundedOnce(type, sum));
}

TEST_CASE("a ReLU keeps NaN, so that bad values show in the loss", "[layer_kernels]") {
  const Typed type = AnyType();
  const auto values = type.ToDevice({std::nan(""), -1, 1});
  RunKernel(
      "dtrun_layer_add_" + type.name, 1,
      LayerAddArgs{values.as<void>(), nullptr, values.as<void>(), 3, 1});
  const Doubles after = type.ToHost(values, 3);
  CHECK(std::isnan(after[0]));
  CHECK(after[1] == 0);
  CHECK(after[2] == 1);
}

TEST_CASE("the gradient of a ReLU passes where the output is above zero", "[layer_kernels]") {
  const Typed type = AnyType();
  const Sizes sizes = AnySizes();
  Doubles y = MadeUp(sizes.count(), 1), dy = MadeUp(sizes.count(), 2), expected = dy;
  for (double& value : y) value = Relu(value);
  for (size_t i = 0; i < y.size(); ++i)
    if (!(y[i] > 0)) expected[i] = 0;
  const auto outputs = type.ToDevice(y), gradients = type.ToDevice(dy);
  RunKernel(
      "dtrun_layer_relu_gradient_" + type.name, 2,
      LayerReluGradientArgs{
          outputs.as<void>(), gradients.as<void>(), gradients.as<void>(), sizes.count()});
  CHECK(type.ToHost(gradients, dy.size()) == expected);
}

TEST_CASE("dropout keeps the values that the CPU's layer keeps", "[layer_kernels]") {
  const Typed type = AnyType();
  const uint32_t rows = 3, width = GENERATE(1u, 200u, 455u), groups = 4;
  const DropoutRule rule{.keep_below = 40000, .scale = 2, .key0 = 11, .key1 = 12, .domain = 13};
  const Doubles x = MadeUp(rows * width, 1), dy = MadeUp(rows * width, 2);
  const auto values = type.ToDevice(x), gradients = type.ToDevice(dy);
  const auto mask = Upload(std::vector<uint8_t>(rows * width, 9));
  RunKernel(
      "dtrun_layer_dropout_" + type.name, 2,
      LayerDropoutArgs{
          values.as<void>(), values.as<void>(), mask.as<uint8_t>(), 5, 70, rows, width, rule});
  RunKernel(
      "dtrun_layer_dropout_gradient_" + type.name, 2,
      LayerDropoutGradientArgs{
          gradients.as<void>(), mask.as<uint8_t>(), gradients.as<void>(), rows * width, 2});
  Doubles y, dx;
  std::vector<uint8_t> kept;
  for (uint32_t row = 0; row < rows; ++row) {
    uint32_t words[groups * kPhiloxGroupWords];
    uint8_t keep[2 * groups * kPhiloxGroupWords];
    PhiloxGroups({0, 70 + row, 5, rule.domain}, {rule.key0, rule.key1}, groups, words);
    KeepBelow(words, groups, rule.keep_below, keep);
    for (uint32_t i = 0; i < width; ++i) {
      kept.push_back(keep[i]);
      y.push_back(keep[i] != 0 ? 2 * x[row * width + i] : 0);
      dx.push_back(keep[i] != 0 ? 2 * dy[row * width + i] : 0);
    }
  }
  CHECK(Download<uint8_t>(mask, kept.size()) == kept);
  CHECK(type.ToHost(values, y.size()) == y);
  CHECK(type.ToHost(gradients, dx.size()) == dx);
}

TEST_CASE("the gradient of a bias is the sum over the pixels, in every run", "[layer_kernels]") {
  const Typed type = AnyType();
  const Sizes sizes = GENERATE(Sizes{3, 5, 7, 13}, Sizes{1, 1, 1, 1}, Sizes{3, 31, 31, 70});
  const Doubles dy = MadeUp(sizes.count(), 1);
  Doubles expected(sizes.channels);
  for (size_t i = 0; i < dy.size(); ++i) expected[i % sizes.channels] += dy[i];
  const auto gradients = type.ToDevice(dy);
  const auto got = Upload(std::vector<float>(sizes.channels, 7));
  const Sums sums(sizes.channels);
  const auto run = [&](uint32_t add) {
    RunKernel(
        "dtrun_layer_column_sums_" + type.name, sums.shape,
        LayerColumnSumsArgs{
            gradients.as<void>(), got.as<float>(), sums.partials.as<double>(),
            sums.counters.as<uint32_t>(), sizes.pixels(), sizes.channels, add});
    return Download<float>(got, sizes.channels);
  };
  const std::vector<float> first = run(0);
  CheckNear(first, expected, 1e-6);
  CHECK(run(0) == first);
  for (double& sum : expected) sum *= 2;
  CheckNear(run(1), expected, 1e-6);
}

TEST_CASE("softmax and its gradient match f64", "[layer_kernels]") {
  const Typed type = AnyType();
  const Sizes sizes = AnySizes();
  Doubles x = MadeUp(sizes.count(), 1);
  for (double& value : x) value *= 4;
  const Doubles dy = MadeUp(sizes.count(), 2);
  Doubles y(x.size()), dx(x.size());
  for (uint32_t first = 0; first < sizes.count(); first += sizes.channels) {
    double sum = 0, dot = 0;
    for (uint32_t i = first; i < first + sizes.channels; ++i) sum += std::exp(x[i]);
    for (uint32_t i = first; i < first + sizes.channels; ++i) {
      y[i] = std::exp(x[i]) / sum;
      dot += y[i] * dy[i];
    }
    for (uint32_t i = first; i < first + sizes.channels; ++i) dx[i] = y[i] * (dy[i] - dot);
  }
  const auto inputs = type.ToDevice(x), outputs = type.Zeros(y.size());
  const auto gradients = type.ToDevice(dy);
  RunKernel(
      "dtrun_layer_softmax_gradient_" + type.name, 2,
      LayerSoftmaxGradientArgs{
          inputs.as<void>(), gradients.as<void>(), gradients.as<void>(), sizes.pixels(),
          sizes.channels});
  CheckNear(type.ToHost(gradients, dx.size()), dx, type.tolerance);
  RunKernel(
      "dtrun_layer_softmax_" + type.name, 2,
      LayerSoftmaxArgs{inputs.as<void>(), outputs.as<void>(), sizes.pixels(), sizes.channels});
  CheckNear(type.ToHost(outputs, y.size()), y, type.tolerance);
  RunKernel(  // in place
      "dtrun_layer_softmax_" + type.name, 2,
      LayerSoftmaxArgs{inputs.as<void>(), inputs.as<void>(), sizes.pixels(), sizes.channels});
  CHECK(type.ToHost(inputs, y.size()) == type.ToHost(outputs, y.size()));
}

TEST_CASE("the exponentials of a softmax do not overflow", "[layer_kernels]") {
  const Typed type = AnyType();
  const auto values = type.ToDevice({200, -200, 200});
  RunKernel(
      "dtrun_layer_softmax_" + type.name, 1,
      LayerSoftmaxArgs{values.as<void>(), values.as<void>(), 1, 3});
  CHECK(type.ToHost(values, 3) == Doubles{0.5, 0, 0.5});
}

// The windows of a pool, and its result and gradient in f64.
struct PoolCase {
  Sizes sizes;
  LayerWindows windows;
  Doubles x, dy, largest, mean, of_largest, of_mean;
  std::vector<uint16_t> winners;

  PoolCase(const Sizes& of, const Window& window) : sizes(of) {
    const WindowExtent down = ExtentOf(window, static_cast<int>(of.height));
    const WindowExtent across = ExtentOf(window, static_cast<int>(of.width));
    const auto unsigned_of = [](int value) { return static_cast<uint32_t>(value); };
    windows = {
        .rows = of.rows,
        .height = of.height,
        .width = of.width,
        .channels = of.channels,
        .output_height = unsigned_of(down.output),
        .output_width = unsigned_of(across.output),
        .size = unsigned_of(window.size),
        .stride = unsigned_of(window.stride),
        .rows_before = unsigned_of(down.before),
        .columns_before = unsigned_of(across.before)};
    x = MadeUp(of.count(), 1);
    for (double& value : x) value = std::round(4 * value) / 4;  // many windows have equal values
    dy = MadeUp(outputs(), 2);
    of_largest = of_mean = Doubles(x.size());
    for (uint32_t i = 0; i < outputs(); ++i) Compute(i);
  }

  uint32_t outputs() const {
    return windows.rows * windows.output_height * windows.output_width * windows.channels;
  }

  void Compute(uint32_t output) {
    const uint32_t c = output % windows.channels, pixel = output / windows.channels;
    const uint32_t w = pixel % windows.output_width;
    const uint32_t h = pixel / windows.output_width % windows.output_height;
    const uint32_t row = pixel / windows.output_width / windows.output_height;
    std::vector<uint32_t> inputs;
    uint32_t winner = 0, at_winner = 0;
    double sum = 0, best = -10;
    for (uint32_t element = 0; element < windows.size * windows.size; ++element) {
      const int64_t y = int64_t{h * windows.stride + element / windows.size} - windows.rows_before;
      const int64_t z =
          int64_t{w * windows.stride + element % windows.size} - windows.columns_before;
      if (y < 0 || z < 0 || y >= windows.height || z >= windows.width) continue;
      const auto at = static_cast<uint32_t>(
          ((row * windows.height + y) * windows.width + z) * windows.channels + c);
      inputs.push_back(at);
      sum += x[at];
      if (x[at] > best) best = x[at], winner = element, at_winner = at;
    }
    largest.push_back(best);
    winners.push_back(static_cast<uint16_t>(winner));
    of_largest[at_winner] += dy[output];
    mean.push_back(sum / static_cast<double>(inputs.size()));
    for (const uint32_t at : inputs) of_mean[at] += dy[output] / static_cast<double>(inputs.size());
  }
};

TEST_CASE("pools over any windows and their gradients match f64", "[layer_kernels]") {
  const Typed type = AnyType();
  const Window window = GENERATE(
      Window{2, 2}, Window{3, 2, Padding::Same()}, Window{3, 1, Padding::Pixels(2)},
      Window{2, 3, Padding::Same()});
  const Sizes sizes = GENERATE(Sizes{3, 5, 7, 13}, Sizes{1, 2, 2, 1});
  const PoolCase pool(sizes, window);
  const uint32_t outputs = pool.outputs(), count = sizes.count();
  const auto x = type.ToDevice(pool.x), dy = type.ToDevice(pool.dy);
  const auto y = type.Zeros(outputs), dx = type.Zeros(count);
  const auto winners = Upload(std::vector<uint16_t>(outputs, 999));
  LayerPoolArgs forward{x.as<void>(), y.as<void>(), winners.as<uint16_t>(), pool.windows};
  LayerPoolGradientArgs backward{
      dy.as<void>(), winners.as<uint16_t>(), dx.as<void>(), pool.windows};
  RunKernel("dtrun_layer_max_pool_" + type.name, 2, forward);
  CHECK(type.ToHost(y, outputs) == pool.largest);
  CHECK(Download<uint16_t>(winners, outputs) == pool.winners);
  RunKernel("dtrun_layer_max_pool_gradient_" + type.name, 2, backward);
  CheckNear(type.ToHost(dx, count), pool.of_largest, type.tolerance);
  forward.winners = nullptr;
  backward.winners = nullptr;
  RunKernel("dtrun_layer_average_pool_" + type.name, 2, forward);
  CheckNear(type.ToHost(y, outputs), pool.mean, type.tolerance);
  RunKernel("dtrun_layer_average_pool_gradient_" + type.name, 2, backward);
  CheckNear(type.ToHost(dx, count), pool.of_mean, type.tolerance);
}

TEST_CASE("the first NaN of a window is its maximum", "[layer_kernels]") {
  const Typed type = AnyType();
  const auto x = type.ToDevice({1, std::nan(""), 5, std::nan("")}), y = type.Zeros(1);
  const auto winners = Upload(std::vector<uint16_t>{9});
  RunKernel(
      "dtrun_layer_max_pool_" + type.name, 1,
      LayerPoolArgs{
          x.as<void>(), y.as<void>(), winners.as<uint16_t>(), {1, 2, 2, 1, 1, 1, 2, 2, 0, 0}});
  CHECK(std::isnan(type.ToHost(y, 1)[0]));
  CHECK(Download<uint16_t>(winners, 1)[0] == 1);
}

TEST_CASE("the mean over all pixels and its gradient match f64", "[layer_kernels]") {
  const Typed type = AnyType();
  const Sizes sizes = AnySizes();
  const uint32_t outputs = sizes.rows * sizes.channels, pixels = sizes.height * sizes.width;
  const Doubles x = MadeUp(sizes.count(), 1), dy = MadeUp(outputs, 2);
  Doubles y(outputs), dx(x.size());
  for (uint32_t i = 0; i < sizes.count(); ++i) {
    const uint32_t output = i / sizes.channels / pixels * sizes.channels + i % sizes.channels;
    y[output] += x[i] / pixels;
    dx[i] = dy[output] / pixels;
  }
  const auto of_x = type.ToDevice(x), of_dy = type.ToDevice(dy);
  const auto of_y = type.Zeros(outputs), of_dx = type.Zeros(dx.size());
  RunKernel(
      "dtrun_layer_global_average_" + type.name, 2,
      LayerGlobalAverageArgs{of_x.as<void>(), of_y.as<void>(), sizes.rows, pixels, sizes.channels});
  CheckNear(type.ToHost(of_y, outputs), y, type.tolerance);
  RunKernel(
      "dtrun_layer_global_average_gradient_" + type.name, 2,
      LayerGlobalAverageArgs{
          of_dy.as<void>(), of_dx.as<void>(), sizes.rows, pixels, sizes.channels});
  CheckNear(type.ToHost(of_dx, dx.size()), dx, type.tolerance);
}

TEST_CASE("values are converted to the type of the activations and back", "[layer_kernels]") {
  const Typed type = AnyType();
  const uint32_t count = 65;
  const Doubles values = MadeUp(count, 1);
  const auto wide = Upload(Floats(values)), narrow = type.ToDevice(Doubles(count, 3));
  RunKernel(
      "dtrun_layer_narrow_" + type.name, 1,
      LayerNarrowArgs{wide.as<float>(), narrow.as<void>(), count});
  CHECK(type.ToHost(narrow, count) == values);
  Doubles doubled;
  for (const double value : values) doubled.push_back(2 * value);
  const auto again = Upload(std::vector<float>(count, 3));
  LayerWidenArgs args{narrow.as<void>(), again.as<float>(), count, 0};
  RunKernel("dtrun_layer_widen_" + type.name, 1, args);
  CHECK(Download<float>(again, count) == Floats(values));
  args.add = 1;
  RunKernel("dtrun_layer_widen_" + type.name, 1, args);
  CHECK(Download<float>(again, count) == Floats(doubled));
}

TEST_CASE("filters change between the orders of Keras and cuDNN", "[layer_kernels]") {
  const Typed type = AnyType();
  const uint32_t taps = 9, inputs = 5, filters = 13, count = taps * inputs * filters;
  const Doubles kernel = MadeUp(count, 1);
  Doubles packed(count), doubled;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t f = i % filters, c = i / filters % inputs, tap = i / filters / inputs;
    packed[(f * taps + tap) * inputs + c] = kernel[i];
    doubled.push_back(2 * kernel[i]);
  }
  const auto from = Upload(Floats(kernel)), to = type.Zeros(count);
  RunKernel(
      "dtrun_layer_pack_filters_" + type.name, 1,
      LayerPackFiltersArgs{from.as<float>(), to.as<void>(), taps, inputs, filters});
  CHECK(type.ToHost(to, count) == packed);
  const auto again = Upload(std::vector<float>(count, 3));
  LayerUnpackFiltersArgs args{to.as<void>(), again.as<float>(), taps, inputs, filters, 0};
  RunKernel("dtrun_layer_unpack_filters_" + type.name, 1, args);
  CHECK(Download<float>(again, count) == Floats(kernel));
  args.add = 1;
  RunKernel("dtrun_layer_unpack_filters_" + type.name, 1, args);
  CHECK(Download<float>(again, count) == Floats(doubled));
}

}  // namespace
}  // namespace dtrun::testing
