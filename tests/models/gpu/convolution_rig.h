#ifndef DTRUN_TESTS_MODELS_GPU_CONVOLUTION_RIG_H_
#define DTRUN_TESTS_MODELS_GPU_CONVOLUTION_RIG_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "models/gpu/convolution.h"
#include "tests/models/gpu/kernel_rig.h"

namespace dtrun::testing {

inline double RelativeDistance(const Doubles& got, const Doubles& expected) {
  double distance = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    distance += std::pow(got[i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(distance / norm);
}

/// A workspace for calls that follow one another in the test's stream.
inline const gpu::DeviceMemory& TestWorkspace() {
  static const auto& memory = *new gpu::DeviceMemory(TestStream().device(), 32 << 20);
  return memory;
}

/// A convolution with its output and gradients in f64.
class ConvolutionExample {
 public:
  /// A 3 x 3 convolution of 16 channels to 8 on images of 5 x 6.
  explicit ConvolutionExample(
      const Typed& of_type, models::Tf32 tf32 = models::Tf32::kOff, int rows = 3)
      : ConvolutionExample(
            of_type, {.input = {5, 6, 16}, .output = {3, 4, 8}, .rows = rows, .tf32 = tf32}) {}

  /// `chosen` with the dtype of `of_type`.
  ConvolutionExample(const Typed& of_type, const models::Convolution::Options& chosen)
      : type(of_type), options(chosen) {
    options.dtype = type.name == "f32"    ? DType::kF32
                    : type.name == "bf16" ? DType::kBF16
                                          : DType::kF16;
    const auto rows = static_cast<size_t>(options.rows), taps = static_cast<size_t>(options.size);
    const size_t filter = taps * taps * static_cast<size_t>(options.input.channels);
    const Doubles in = MadeUp(rows * options.input.count(), 1);
    const Doubles w = MadeUp(static_cast<size_t>(options.output.channels) * filter, 2);
    const Doubles gradient = MadeUp(rows * options.output.count(), 3);
    output_.resize(gradient.size());
    to_filters_.resize(w.size());
    to_input_.resize(in.size());
    ForEachProduct([&](size_t of_input, size_t of_filters, size_t of_output) {
      output_[of_output] += in[of_input] * w[of_filters];
      to_filters_[of_filters] += in[of_input] * gradient[of_output];
      to_input_[of_input] += gradient[of_output] * w[of_filters];
    });
    input = type.ToDevice(in);
    filters = type.ToDevice(w);
    output_gradient = type.ToDevice(gradient);
  }

  models::ConvolutionSetting setting() const {
    return {handle, options, models::Workspace{workspace.as<void>(), workspace.bytes()}};
  }

  const Doubles& Expected(models::Direction direction) const {
    if (direction == models::Direction::kForward) return output_;
    return direction == models::Direction::kFilters ? to_filters_ : to_input_;
  }

  /// The inputs of a direction, and `result`, which is as large as the direction's output.
  models::ConvolutionTensors Tensors(
      models::Direction direction, const gpu::DeviceMemory& result) const {
    const bool forward = direction == models::Direction::kForward;
    const bool to_filters = direction == models::Direction::kFilters;
    return {
        forward || to_filters ? input.as<void>() : result.as<void>(),
        to_filters ? result.as<void>() : filters.as<void>(),
        forward ? result.as<void>() : output_gradient.as<void>()};
  }

  gpu::DeviceMemory Result(models::Direction direction) const {
    return type.ToDevice(Doubles(Expected(direction).size(), 99));
  }

  Doubles Computed(models::ConvolutionWay& way, models::Direction direction) const {
    const gpu::DeviceMemory result = Result(direction);
    const gpu::DeviceScope scope(TestStream().device());
    way.Enqueue(Tensors(direction, result));
    TestStream().Synchronize();
    return type.ToHost(result, Expected(direction).size());
  }

  Typed type;
  models::Convolution::Options options;
  gpu::DeviceMemory input, filters, output_gradient;
  const gpu::DeviceMemory& workspace = TestWorkspace();
  models::CudnnHandle handle{TestStream()};

 private:
  // Calls visit(index of an input, index of a weight, index of an output) for each product of the
  // definition.
  template <typename Visit>
  void ForEachProduct(const Visit& visit) const {
    const models::Shape &x = options.input, &y = options.output;
    const int size = options.size, filter = size * size * x.channels;
    for (int at = 0; at < options.rows * static_cast<int>(y.count()); ++at) {
      const int k = at % y.channels, pixel = at / y.channels;
      const int example = pixel / (y.width * y.height);
      const int top = pixel / y.width % y.height * options.stride - options.padding.rows;
      const int left = pixel % y.width * options.stride - options.padding.columns;
      for (int i = 0; i < filter; ++i) {
        const int c = i % x.channels, tap = i / x.channels;
        const int row = top + tap / size, column = left + tap % size;
        if (row < 0 || row >= x.height || column < 0 || column >= x.width) continue;
        const int of_input = ((example * x.height + row) * x.width + column) * x.channels + c;
        visit(
            static_cast<size_t>(of_input), static_cast<size_t>(k * filter + i),
            static_cast<size_t>(at));
      }
    }
  }

  // Numbers in (-1, 1) that use all digits of the type.
  Doubles MadeUp(size_t count, uint32_t salt) const {
    Doubles values(count);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bits = (static_cast<uint32_t>(i) * 2654435761u + salt * 40503u) >> 8 & 255;
      values[i] = static_cast<double>(type.Rounded((static_cast<double>(bits) - 127.5) / 131));
    }
    return values;
  }

  Doubles output_, to_filters_, to_input_;
};

/// A convolution for an example. Its own buffers take the output of the ways that it tries.
class ChosenConvolution {
 public:
  explicit ChosenConvolution(const ConvolutionExample& example)
      : example_(example),
        input_(example.Result(models::Direction::kInput)),
        filters_(example.Result(models::Direction::kFilters)),
        output_(example.Result(models::Direction::kForward)),
        convolution(
            TestStream(), example.options, example.setting().workspace, input_.as<void>(),
            filters_.as<void>(), output_.as<void>()) {}

  /// No way has written to the buffers.
  bool IsUntouched() const {
    const auto is_as_made = [&](const gpu::DeviceMemory& memory, models::Direction direction) {
      const Doubles expected(example_.Expected(direction).size(), 99);
      return example_.type.ToHost(memory, expected.size()) == expected;
    };
    return is_as_made(output_, models::Direction::kForward) &&
           is_as_made(filters_, models::Direction::kFilters) &&
           is_as_made(input_, models::Direction::kInput);
  }

  /// The results of one call per direction, in the order of Direction. `run` gets a function that
  /// enqueues the three calls.
  template <typename Run>
  std::vector<Doubles> Results(const Run& run) {
    run([&] {
      const auto& e = example_;
      convolution.Forward(e.input.as<void>(), e.filters.as<void>(), output_.as<void>());
      convolution.BackwardFilters(
          e.input.as<void>(), e.output_gradient.as<void>(), filters_.as<void>());
      convolution.BackwardInput(
          e.output_gradient.as<void>(), e.filters.as<void>(), input_.as<void>());
    });
    TestStream().Synchronize();
    const auto values = [&](const gpu::DeviceMemory& memory, models::Direction direction) {
      return example_.type.ToHost(memory, example_.Expected(direction).size());
    };
    return {
        values(output_, models::Direction::kForward), values(filters_, models::Direction::kFilters),
        values(input_, models::Direction::kInput)};
  }

 private:
  const ConvolutionExample& example_;
  gpu::DeviceMemory input_, filters_, output_;

 public:
  models::Convolution convolution;
};

}  // namespace dtrun::testing

#endif
