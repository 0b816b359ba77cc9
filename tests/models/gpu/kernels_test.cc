// Each kernel of models/gpu against its definition in f64. Sizes include partly filled blocks and
// vectors.

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "models/gpu/kernel_args.h"
#include "models/layers/cpu_kernels.h"
#include "models/random/philox.h"
#include "tests/models/gpu/kernel_rig.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

TEST_CASE("a batch is gathered in the requested order and bytes are divided by 255") {
  const Typed type = AnyType();
  const uint32_t pixels = GENERATE(15u, 32u);
  const uint32_t images = 7, rows = 5, examples = 4;
  std::vector<uint8_t> bytes(images * pixels), labels(images);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37);
  for (size_t i = 0; i < images; ++i) labels[i] = static_cast<uint8_t>(10 + i);
  const auto image_memory = Upload(bytes), label_memory = Upload(labels);
  const bool in_order = GENERATE(true, false);  // as in a batch that was copied for the step
  const std::vector<uint32_t> order =
      in_order ? std::vector<uint32_t>{0, 1, 2, 3} : std::vector<uint32_t>{3, 5, 5, 1};
  const auto order_memory = Upload(order);
  StepState state;
  state.now.images = image_memory.as<uint8_t>();
  state.now.labels = label_memory.as<uint8_t>();
  state.now.order = in_order ? nullptr : order_memory.as<uint32_t>();
  state.now.examples = examples;
  const auto state_memory = Upload(std::vector<StepState>{state});
  const auto inputs = type.Zeros(rows * pixels);
  const auto wanted = Upload(std::vector<int32_t>(rows, 99));
  RunKernel(
      "dtrun_gather_" + type.name, 2,
      GatherArgs{
          state_memory.as<StepState>(), inputs.as<void>(), wanted.as<int32_t>(), rows, pixels});
  std::vector<int32_t> expected_labels(rows, -1);
  for (size_t row = 0; row < examples; ++row)
    expected_labels[row] = static_cast<int32_t>(10 + order[row]);
  CHECK(Download<int32_t>(wanted, rows) == expected_labels);
  Doubles expected(rows * pixels);
  for (size_t row = 0; row < examples; ++row)
    for (size_t p = 0; p < pixels; ++p)
      expected[row * pixels + p] = static_cast<double>(
          type.Rounded(static_cast<double>(bytes[order[row] * pixels + p]) / 255));
  CHECK(type.ToHost(inputs, expected.size()) == expected);
}

TEST_CASE("the first convolution and the gradients of its kernel and bias match f64") {
  const Typed type = AnyType();
  const uint32_t filters = GENERATE(8u, 32u, 256u);
  const bool masked = GENERATE(true, false);
  const uint32_t rows = 3, height = 5, width = 7, pixels = 3 * 5;
  const Doubles x = MadeUp(rows * height * width, 1), kernel = MadeUp(9 * filters, 2);
  const Doubles bias = MadeUp(filters, 3), dy = MadeUp(rows * pixels * filters, 4);
  Doubles y(rows * pixels * filters), gradients(10 * filters);
  for (uint32_t at = 0; at < rows * pixels; ++at) {
    const uint32_t row = at / pixels, h = at % pixels / 5, w = at % 5;
    for (uint32_t f = 0; f < filters; ++f) {
      double sum = bias[f];
      const auto input = [&](uint32_t tap) {
        return x[(row * height + h + tap / 3) * width + w + tap % 3];
      };
      for (uint32_t tap = 0; tap < 9; ++tap) sum += input(tap) * kernel[tap * filters + f];
      y[at * filters + f] = std::max(sum, 0.0);
      if (masked && sum <= 0) continue;
      for (uint32_t tap = 0; tap < 9; ++tap)
        gradients[tap * filters + f] += input(tap) * dy[at * filters + f];
      gradients[9 * filters + f] += dy[at * filters + f];
    }
  }
  const auto inputs = type.ToDevice(x), outputs = type.Zeros(y.size()), of_y = type.ToDevice(dy);
  const auto mask = Upload(std::vector<uint8_t>(y.size() / 8, 0x5A));
  const auto kernels = Upload(Floats(kernel)), biases = Upload(Floats(bias));
  const uint32_t shared = height * width * sizeof(float);
  RunKernel(
      "dtrun_first_convolution_" + type.name, 2,
      FirstConvolutionArgs{
          inputs.as<void>(), kernels.as<float>(), biases.as<float>(), outputs.as<void>(),
          masked ? mask.as<uint8_t>() : nullptr, rows, height, width, filters},
      shared);
  CheckNear(type.ToHost(outputs, y.size()), y, type.tolerance);
  std::vector<uint8_t> bits(y.size() / 8, masked ? 0 : 0x5A);
  if (masked)
    for (size_t i = 0; i < y.size(); ++i) bits[i / 8] |= static_cast<uint8_t>((y[i] > 0) << i % 8);
  CHECK(Download<uint8_t>(mask, bits.size()) == bits);
  const auto got = Upload(std::vector<float>(10 * filters, 7));
  const auto partials = Upload(std::vector<float>(2 * 10 * filters));
  const auto counter = Upload(std::vector<uint32_t>{0});
  for (int time = 0; time < 2; ++time) {  // the kernel resets the counter for the next launch
    RunKernel(
        "dtrun_first_convolution_gradient_" + type.name, 2,
        FirstConvolutionGradientArgs{
            inputs.as<void>(), masked ? mask.as<uint8_t>() : nullptr, of_y.as<void>(),
            got.as<float>(), got.as<float>() + 9 * filters, partials.as<float>(),
            counter.as<uint32_t>(), rows, height, width, filters},
        shared);
    CheckNear(Download<float>(got, 10 * filters), gradients, 1e-5);
  }
}

TEST_CASE("a pool with and without bias and ReLU and its gradient match f64") {
  const Typed type = AnyType();
  const bool biased = GENERATE(true, false);
  const uint32_t rows = 3, height = 5, width = 7, channels = 16;
  Doubles x = MadeUp(rows * height * width * channels, 5);
  // If values in a window are equal, the first value wins.
  for (uint32_t c = 0; c < channels; ++c) x[c] = x[channels + c] = 0.75;
  if (!biased)
    for (double& value : x) value = std::max(value, 0.0);
  const Doubles bias = biased ? MadeUp(channels, 6) : Doubles(channels);
  const uint32_t out = rows * 2 * 3 * channels;
  const Doubles dy = MadeUp(out, 7);
  Doubles y(out), dx(x.size()), bias_gradient(channels);
  std::vector<uint8_t> winners(out, 4);
  for (uint32_t i = 0; i < out; ++i) {
    const uint32_t c = i % channels, w = i / channels % 3, h = i / channels / 3 % 2;
    const uint32_t row = i / channels / 6;
    double largest = -10;
    uint32_t winner = 0;
    const auto at = [&](uint32_t element) {
      return ((row * height + 2 * h + element / 2) * width + 2 * w + element % 2) * channels + c;
    };
    for (uint32_t element = 0; element < 4; ++element)
      if (x[at(element)] > largest) largest = x[at(element)], winner = element;
    y[i] = std::max(largest + bias[c], 0.0);
    if (largest + bias[c] <= 0) continue;
    winners[i] = static_cast<uint8_t>(winner);
    dx[at(winner)] = 2 * dy[i];
    bias_gradient[c] += 2 * dy[i];
  }
  const auto inputs = type.ToDevice(x), outputs = type.Zeros(out), of_y = type.ToDevice(dy);
  const auto biases = Upload(Floats(bias));
  const auto won = Upload(std::vector<uint8_t>(out, 9));
  RunKernel(
      "dtrun_pool_" + type.name, 2,
      PoolArgs{
          inputs.as<void>(),
          biased ? biases.as<float>() : nullptr,
          outputs.as<void>(),
          won.as<uint8_t>(),
          nullptr,
          rows,
          height,
          width,
          channels,
          {}});
  CheckNear(type.ToHost(outputs, out), y, type.tolerance);
  CHECK(Download<uint8_t>(won, out) == winners);
  const auto of_x = type.ToDevice(Doubles(x.size(), 3)), got = Upload(std::vector<float>(channels));
  const auto partials = Upload(std::vector<float>(3 * channels));
  const auto counter = Upload(std::vector<uint32_t>{0});
  RunKernel(
      "dtrun_pool_gradient_" + type.name, 3,
      PoolGradientArgs{
          of_y.as<void>(), won.as<uint8_t>(), of_x.as<void>(), got.as<float>(),
          partials.as<float>(), counter.as<uint32_t>(), rows, height, width, channels, 2});
  CheckNear(type.ToHost(of_x, x.size()), dx, type.tolerance);
  CheckNear(Download<float>(got, channels), bias_gradient, 1e-5);
}

TEST_CASE("dropout keeps exactly the values that the CPU's generator keeps") {
  const Typed type = AnyType();
  const uint32_t rows = 3, width = 200;  // no multiple of a group of 128 or of a warp
  DropoutRule rule{.keep_below = 40000, .scale = 2, .key0 = 11, .key1 = 12, .domain = 13};
  StepState state;
  state.now.step = 5;
  state.now.first_position = 70;
  const auto states = Upload(std::vector<StepState>{state});
  Doubles before(rows * width, 1);
  before[3] = before[205] = 0;
  const auto values = type.ToDevice(before);
  const uint32_t mask_bytes = 32;
  const bool masks = GENERATE(true, false);
  const auto mask = Upload(std::vector<uint8_t>(rows * mask_bytes, 0));
  RunKernel(
      "dtrun_dropout_" + type.name, 1,
      DropoutArgs{
          values.as<void>(), masks ? mask.as<uint8_t>() : nullptr, states.as<StepState>(), rows,
          width, mask_bytes, rule});
  Doubles expected;
  std::vector<uint8_t> expected_mask(rows * mask_bytes);
  for (uint32_t row = 0; row < rows; ++row) {
    uint32_t words[2 * kPhiloxGroupWords];
    uint8_t keep[4 * kPhiloxGroupWords];
    PhiloxGroups({0, 70 + row, 5, rule.domain}, {rule.key0, rule.key1}, 2, words);
    KeepBelow(words, 2, rule.keep_below, keep);
    for (uint32_t i = 0; i < width; ++i) {
      expected.push_back(keep[i] != 0 ? 2 * before[row * width + i] : 0);
      if (masks && expected.back() > 0)
        expected_mask[row * mask_bytes + i / 8] |= static_cast<uint8_t>(1u << i % 8);
    }
  }
  CHECK(type.ToHost(values, rows * width) == expected);
  CHECK(Download<uint8_t>(mask, rows * mask_bytes) == expected_mask);
}

TEST_CASE("the gradient through ReLU and dropout and the bias gradient match f64") {
  const Typed type = AnyType();
  const uint32_t width = GENERATE(8u, 64u, 256u);
  const uint32_t rows = 301;
  const Doubles y = MadeUp(rows * width, 1), dy = MadeUp(rows * width, 2);
  Doubles expected(y.size()), sums(width);
  for (size_t i = 0; i < y.size(); ++i) {
    expected[i] = y[i] > 0 ? dy[i] * 2 : 0;
    sums[i % width] += expected[i];
  }
  const auto outputs = type.ToDevice(y), gradients = type.ToDevice(dy);
  const auto got = Upload(std::vector<float>(width));
  const auto partials = Upload(std::vector<float>(5 * width));
  const auto counter = Upload(std::vector<uint32_t>{0});
  RunKernel(
      "dtrun_relu_gradient_" + type.name, 5,
      ReluGradientArgs{
          outputs.as<void>(), gradients.as<void>(), got.as<float>(), partials.as<float>(),
          counter.as<uint32_t>(), rows, width, 2});
  CHECK(type.ToHost(gradients, y.size()) == expected);
  CheckNear(Download<float>(got, width), sums, 1e-4);
}

TEST_CASE("the loss and its gradient and the metrics match f64") {
  const Typed type = AnyType();
  const uint32_t rows = 600, examples = 590, classes = 5, stride = 8;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> logits(rows * stride, nan);  // the kernel must not read behind the classes
  std::vector<int32_t> labels(rows, -1);
  Doubles expected(rows * stride), sums(stride);
  double loss = 0;
  uint64_t correct = 0;
  const double factor = 4.0 / examples;
  const Doubles made_up = MadeUp(rows * classes, 9);
  for (uint32_t row = 0; row < examples; ++row) {
    labels[row] = static_cast<int32_t>(row % classes);
    float* of_row = logits.data() + row * stride;
    double sum = 0;
    uint32_t largest = 0;
    for (uint32_t c = 0; c < classes; ++c) {
      of_row[c] = static_cast<float>(50 * made_up[row * classes + c]);
      sum += std::exp(static_cast<double>(of_row[c]));
      if (of_row[c] > of_row[largest]) largest = c;
    }
    const uint32_t label = row % classes;
    loss += std::log(sum) - static_cast<double>(of_row[label]);
    correct += largest == label ? 1 : 0;
    for (uint32_t c = 0; c < classes; ++c) {
      const double share = std::exp(static_cast<double>(of_row[c])) / sum;
      expected[row * stride + c] = factor * (share - (c == label ? 1 : 0));
      sums[c] += expected[row * stride + c];
    }
  }
  StepState state;
  state.now.examples = examples;
  state.now.loss_factor = 1.0f / examples;
  state.now.loss_slot = 1;
  state.scale = 4;
  state.loss_sum = 100;
  const auto logit_memory = Upload(logits);
  const auto label_memory = Upload(labels);
  const auto states = Upload(std::vector<StepState>{state});
  const auto gradients = type.Zeros(rows * stride);
  const auto bias = Upload(std::vector<float>(stride)), losses = Upload(std::vector<float>(2));
  const auto partials = Upload(std::vector<float>(3 * (stride + 2)));
  const auto counter = Upload(std::vector<uint32_t>{0});
  RunKernel(
      "dtrun_loss_" + type.name, 3,
      LossArgs{
          logit_memory.as<float>(), label_memory.as<int32_t>(), states.as<StepState>(),
          gradients.as<void>(), bias.as<float>(), losses.as<float>(), partials.as<float>(),
          counter.as<uint32_t>(), rows, classes, stride});
  const StepState after = Download<StepState>(states, 1)[0];
  CHECK(after.loss_sum == Approx(100 + loss).epsilon(1e-5));
  CHECK(after.correct == correct);
  CHECK(after.examples == examples);
  CHECK(Download<float>(losses, 2)[1] == Approx(loss / examples).epsilon(1e-5));
  CheckNear(type.ToHost(gradients, expected.size()), expected, type.tolerance);
  CheckNear(Download<float>(bias, stride), sums, 1e-4);
}

TEST_CASE("Adam and SGD update a block of parameters and its narrow copy or skip the step") {
  const Typed type = AnyType();
  const uint64_t count = 8 * 300;
  const Doubles value = MadeUp(count, 1), gradient = MadeUp(count, 2), m = MadeUp(count, 3);
  Doubles v = MadeUp(count, 4), expected(count), moments(count);
  for (double& each : v) each = std::abs(each);
  const bool adam = GENERATE(true, false), skips = GENERATE(true, false);
  StepState state;
  state.update_rate = 0.125f;
  state.unscale = 0.5f;
  state.skip = skips ? 1 : 0;
  for (size_t i = 0; i < count; ++i) {
    const double g = gradient[i] / 2;
    if (adam) {
      moments[i] = m[i] + (g - m[i]) * 0.25;
      const double second = v[i] + (g * g - v[i]) * 0.5;
      expected[i] = value[i] - 0.125 * moments[i] / (std::sqrt(second) + 0.25);
    } else {
      const double step = 0.125 * (g + 0.5 * value[i]);
      moments[i] = 0.75 * m[i] - step;
      expected[i] = value[i] + 0.75 * moments[i] - step;
    }
  }
  const auto values = Upload(Floats(value)), gradients = Upload(Floats(gradient));
  const auto first = Upload(Floats(m)), second = Upload(Floats(v));
  const auto copy = type.Zeros(count);
  const auto states = Upload(std::vector<StepState>{state});
  void* const narrow = type.name == "f32" ? nullptr : copy.as<void>();
  if (adam) {
    RunKernel(
        "dtrun_adam_" + type.name, 2,
        AdamArgs{
            values.as<float>(), gradients.as<float>(), first.as<float>(), second.as<float>(),
            narrow, states.as<StepState>(), count, 0.25f, 0.5f, 0.25f});
  } else {
    RunKernel(
        "dtrun_sgd_" + type.name, 2,
        SgdArgs{
            values.as<float>(), gradients.as<float>(), first.as<float>(), narrow,
            states.as<StepState>(), count, 0.75f, 0.5f, 1});
  }
  const auto after = Download<float>(values, count);
  if (skips) {
    CHECK(after == Floats(value));
    CHECK(Download<float>(first, count) == Floats(m));
    return;
  }
  CheckNear(after, expected, 1e-6);
  CheckNear(Download<float>(first, count), moments, 1e-6);
  if (narrow == nullptr) return;
  Doubles rounded;
  for (const float each : after)
    rounded.push_back(static_cast<double>(type.Rounded(static_cast<double>(each))));
  CHECK(type.ToHost(copy, count) == rounded);
}

TEST_CASE("one infinity or NaN anywhere skips the step and halves the loss scale") {
  const uint64_t count = 8 * 700;
  const int64_t where = GENERATE(-1, 0, 2801, 5599);
  const float what =
      GENERATE(std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN());
  std::vector<float> gradients = Floats(MadeUp(count, 1));
  if (where >= 0) gradients[static_cast<size_t>(where)] = what;
  StepState state;
  state.scale = 1024;
  state.good_steps = 2;
  state.now.rate = 0.5f;
  const auto memory = Upload(gradients);
  const auto states = Upload(std::vector<StepState>{state});
  const auto counter = Upload(std::vector<uint32_t>{0});
  const CheckGradientsArgs args{
      memory.as<float>(),
      states.as<StepState>(),
      counter.as<uint32_t>(),
      count,
      {.beta1 = 0.9, .beta2 = 0.999},
      {.growth_interval = 4}};
  RunKernel("dtrun_check_gradients", 3, args);
  StepState after = Download<StepState>(states, 1)[0];
  const bool bad = where >= 0;
  CHECK(after.skip == (bad ? 1u : 0u));
  CHECK(after.scale == (bad ? 512.0f : 1024.0f));
  CHECK(after.unscale == 1.0f / 1024);
  CHECK(after.skipped_steps == (bad ? 1u : 0u));
  CHECK(after.updates == (bad ? 0u : 1u));
  if (bad) return;
  CHECK(after.update_rate == Approx(0.5 * std::sqrt(0.001) / 0.1));
  RunKernel("dtrun_check_gradients", 3, args);
  after = Download<StepState>(states, 1)[0];
  CHECK(after.scale == 2048.0f);  // after the fourth good step
  CHECK(after.good_steps == 0);
}

TEST_CASE("narrowing and widening keep values that the narrow type represents") {
  const Typed type = GENERATE(Typed{"bf16", 2, 0}, Typed{"f16", 2, 0});
  const Doubles values = MadeUp(8 * 33, 1);
  const auto wide = Upload(Floats(values)), narrow = type.Zeros(values.size());
  RunKernel(
      "dtrun_narrow_" + type.name, 1,
      NarrowArgs{wide.as<float>(), narrow.as<void>(), values.size()});
  CHECK(type.ToHost(narrow, values.size()) == values);
  const auto again = Upload(std::vector<float>(values.size()));
  RunKernel(
      "dtrun_widen_" + type.name, 1,
      WidenArgs{narrow.as<void>(), again.as<float>(), values.size()});
  CHECK(Download<float>(again, values.size()) == Floats(values));
}

}  // namespace
}  // namespace dtrun::testing
