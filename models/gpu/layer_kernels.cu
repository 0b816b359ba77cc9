// One plain kernel per operation of a layer, for networks that the fused kernels do not compute. A
// thread takes one value at a time, or 16 bytes of values where the operation is the same for all of
// them, so shapes are free. Divisions by the number of channels cost less than the memory traffic.

#include "gpu/kernel.h"
#include "models/gpu/layer_args.h"
#include "models/gpu/layer_math.cuh"

namespace dtrun::models {
namespace {

// ---- Element by element -------------------------------------------------------------------------

template <typename T>
__device__ void AddBias(const LayerBiasArgs& args) {
  Map<T>(
      args.pixels * args.channels, args.inputs, nullptr, args.outputs,
      [&](uint32_t i, float x, float) {
        const float value = x + args.bias[i % args.channels];
        return args.relu != 0 ? Relu(value) : value;
      });
}

template <typename T>
__device__ void MaskByRelu(const LayerReluGradientArgs& args) {
  Map<T>(
      args.count, args.outputs, args.output_gradients, args.input_gradients,
      [&](uint32_t, float output, float gradient) { return output > 0 ? gradient : 0; });
}

template <typename T>
__device__ void AddTwo(const LayerAddArgs& args) {
  Map<T>(args.count, args.a, args.b, args.outputs, [&](uint32_t, float a, float b) {
    return args.relu != 0 ? Relu(a + b) : a + b;
  });
}

// The mask is made in groups of 128 values. A thread makes the four words of one of the 16 counters
// of a group. Their lower halves decide about every 16th value of the first 64 values, and their
// upper halves about every 16th value of the other 64.
template <typename T>
__device__ void Dropout(const LayerDropoutArgs& args) {
  constexpr uint32_t kCounters = 16, kHalves = 8;
  const DropoutRule& rule = args.rule;
  const uint32_t counters =
      (args.width + kCounters * kHalves - 1) / (kCounters * kHalves) * kCounters;
  ForEach(args.rows * counters, [&](uint32_t item) {
    const uint32_t row = item / counters, counter = item % counters;
    const PhiloxWords words = Philox(
        counter, args.first_position + row, static_cast<uint32_t>(args.step), rule.domain,
        rule.key0, rule.key1);
    for (uint32_t k = 0; k < kHalves; ++k) {
      const uint32_t at =
          counter / kCounters * kCounters * kHalves + k * kCounters + counter % kCounters;
      if (at >= args.width) continue;
      const uint32_t word = words.word[k % 4];
      const bool kept = (k < 4 ? word & 0xFFFFu : word >> 16) < rule.keep_below;
      const uint32_t i = row * args.width + at;
      if (args.keep != nullptr) args.keep[i] = kept ? 1 : 0;
      Store<T>(kept ? Load<T>(args.inputs, i) * rule.scale : 0, args.outputs, i);
    }
  });
}

template <typename T>
__device__ void DropoutGradient(const LayerDropoutGradientArgs& args) {
  ForEach(args.count, [&](uint32_t i) {
    const bool kept = args.keep[i] != 0;
    Store<T>(kept ? Load<T>(args.output_gradients, i) * args.scale : 0, args.input_gradients, i);
  });
}

// ---- Channel by channel -------------------------------------------------------------------------

template <typename T>
__device__ void SumChannels(const LayerColumnSumsArgs& args) {
  SumColumns<1>(
      args.pixels, args.channels, args.partials, args.counters,
      [&](uint32_t i, uint32_t, float* sums) { sums[0] += Load<T>(args.values, i); },
      [&](uint32_t c, const double* sums) {
        const double before = args.add != 0 ? static_cast<double>(args.sums[c]) : 0;
        args.sums[c] = static_cast<float>(before + sums[0]);
      });
}

// The largest value of a pixel is subtracted from all exponents, so that no exponential overflows.
template <typename T>
struct Exponentials {
  const void* inputs;
  uint32_t first;  // index of the pixel
  float largest, sum = 0;

  __device__ Exponentials(const void* x, uint32_t at, uint32_t channels)
      : inputs(x), first(at), largest(Load<T>(x, at)) {
    for (uint32_t k = 1; k < channels; ++k) {
      const float value = Load<T>(x, at + k);
      if (value > largest) largest = value;
    }
    for (uint32_t k = 0; k < channels; ++k) sum += Of(k);
  }
  __device__ float Of(uint32_t k) const { return expf(Load<T>(inputs, first + k) - largest); }
};

template <typename T>
__device__ void Softmax(const LayerSoftmaxArgs& args) {
  ForEach(args.pixels, [&](uint32_t pixel) {
    const Exponentials<T> of(args.inputs, pixel * args.channels, args.channels);
    for (uint32_t k = 0; k < args.channels; ++k)
      Store<T>(of.Of(k) / of.sum, args.outputs, of.first + k);
  });
}

template <typename T>
__device__ void SoftmaxGradient(const LayerSoftmaxGradientArgs& args) {
  ForEach(args.pixels, [&](uint32_t pixel) {
    const Exponentials<T> of(args.inputs, pixel * args.channels, args.channels);
    const auto gradient = [&](uint32_t k) { return Load<T>(args.output_gradients, of.first + k); };
    float dot = 0;
    for (uint32_t k = 0; k < args.channels; ++k) dot += gradient(k) * (of.Of(k) / of.sum);
    for (uint32_t k = 0; k < args.channels; ++k)
      Store<T>(of.Of(k) / of.sum * (gradient(k) - dot), args.input_gradients, of.first + k);
  });
}

// ---- Pooling ------------------------------------------------------------------------------------

// The pixels of window `index` along one side of the image: those inside the image are [begin,
// end).
struct Span {
  uint32_t begin, end;
  uint32_t skipped;  // pixels of padding before `begin`

  __device__ Span(uint32_t index, uint32_t before, uint32_t input, const LayerWindows& windows) {
    const uint32_t padded = index * windows.stride;  // counted from the begin of the padding
    begin = padded > before ? padded - before : 0;
    end = min(padded + windows.size - before, input);
    skipped = padded > before ? 0 : before - padded;
  }
};

// Calls visit(index of the input, element of the window) for the pixels of an output's window.
// Returns their number.
template <typename Visit>
__device__ inline uint32_t ForEachPixel(
    const LayerWindows& windows, uint32_t output, const Visit& visit) {
  const uint32_t c = output % windows.channels, pixel = output / windows.channels;
  const uint32_t w = pixel % windows.output_width, h = pixel / windows.output_width;
  const uint32_t row = h / windows.output_height;
  const Span rows(h % windows.output_height, windows.rows_before, windows.height, windows);
  const Span columns(w, windows.columns_before, windows.width, windows);
  for (uint32_t y = rows.begin; y < rows.end; ++y) {
    const uint32_t element_row = (y - rows.begin + rows.skipped) * windows.size;
    for (uint32_t x = columns.begin; x < columns.end; ++x) {
      visit(
          ((row * windows.height + y) * windows.width + x) * windows.channels + c,
          element_row + x - columns.begin + columns.skipped);
    }
  }
  return (rows.end - rows.begin) * (columns.end - columns.begin);
}

// The windows that contain a pixel, along one side of the image: [begin, end).
struct Containing {
  uint32_t begin, end;

  __device__ Containing(uint32_t padded, uint32_t outputs, const LayerWindows& windows) {
    begin = padded < windows.size ? 0 : (padded - windows.size) / windows.stride + 1;
    end = min(padded / windows.stride + 1, outputs);
  }
};

// Calls visit(index of the output, element of its window, pixels of the window inside the image)
// for the windows that contain a pixel of the input.
template <typename Visit>
__device__ inline void ForEachWindow(
    const LayerWindows& windows, uint32_t input, const Visit& visit) {
  const uint32_t c = input % windows.channels, pixel = input / windows.channels;
  const uint32_t row = pixel / windows.width / windows.height;
  const uint32_t y = pixel / windows.width % windows.height + windows.rows_before;
  const uint32_t x = pixel % windows.width + windows.columns_before;
  const Containing rows(y, windows.output_height, windows);
  const Containing columns(x, windows.output_width, windows);
  for (uint32_t h = rows.begin; h < rows.end; ++h) {
    const Span down(h, windows.rows_before, windows.height, windows);
    for (uint32_t w = columns.begin; w < columns.end; ++w) {
      const Span across(w, windows.columns_before, windows.width, windows);
      visit(
          ((row * windows.output_height + h) * windows.output_width + w) * windows.channels + c,
          (y - h * windows.stride) * windows.size + x - w * windows.stride,
          (down.end - down.begin) * (across.end - across.begin));
    }
  }
}

__device__ inline uint32_t Inputs(const LayerWindows& windows) {
  return windows.rows * windows.height * windows.width * windows.channels;
}
__device__ inline uint32_t Outputs(const LayerWindows& windows) {
  return windows.rows * windows.output_height * windows.output_width * windows.channels;
}

template <typename T>
__device__ void MaxPool(const LayerPoolArgs& args) {
  ForEach(Outputs(args.windows), [&](uint32_t output) {
    float largest = 0;
    uint32_t winner = 0;
    bool found = false;
    ForEachPixel(args.windows, output, [&](uint32_t input, uint32_t element) {
      const float value = Load<T>(args.inputs, input);
      const bool is_first_nan = value != value && largest == largest;
      if (found && !(value > largest) && !is_first_nan) return;
      found = true;
      largest = value;
      winner = element;
    });
    Store<T>(largest, args.outputs, output);
    if (args.winners != nullptr) args.winners[output] = static_cast<uint16_t>(winner);
  });
}

template <typename T>
__device__ void MaxPoolGradient(const LayerPoolGradientArgs& args) {
  ForEach(Inputs(args.windows), [&](uint32_t input) {
    float sum = 0;
    ForEachWindow(args.windows, input, [&](uint32_t output, uint32_t element, uint32_t) {
      if (args.winners[output] == element) sum += Load<T>(args.output_gradients, output);
    });
    Store<T>(sum, args.input_gradients, input);
  });
}

template <typename T>
__device__ void AveragePool(const LayerPoolArgs& args) {
  ForEach(Outputs(args.windows), [&](uint32_t output) {
    float sum = 0;
    const uint32_t pixels = ForEachPixel(args.windows, output, [&](uint32_t input, uint32_t) {
      sum += Load<T>(args.inputs, input);
    });
    Store<T>(sum / static_cast<float>(pixels), args.outputs, output);
  });
}

template <typename T>
__device__ void AveragePoolGradient(const LayerPoolGradientArgs& args) {
  ForEach(Inputs(args.windows), [&](uint32_t input) {
    float sum = 0;
    ForEachWindow(args.windows, input, [&](uint32_t output, uint32_t, uint32_t pixels) {
      sum += Load<T>(args.output_gradients, output) / static_cast<float>(pixels);
    });
    Store<T>(sum, args.input_gradients, input);
  });
}

template <typename T>
__device__ void GlobalAverage(const LayerGlobalAverageArgs& args) {
  ForEach(args.rows * args.channels, [&](uint32_t i) {
    const uint32_t row = i / args.channels, c = i % args.channels;
    float sum = 0;
    for (uint32_t pixel = 0; pixel < args.pixels; ++pixel)
      sum += Load<T>(args.from, (row * args.pixels + pixel) * args.channels + c);
    Store<T>(sum / static_cast<float>(args.pixels), args.to, i);
  });
}

template <typename T>
__device__ void GlobalAverageGradient(const LayerGlobalAverageArgs& args) {
  const float share = 1 / static_cast<float>(args.pixels);
  ForEach(args.rows * args.pixels * args.channels, [&](uint32_t i) {
    const uint32_t row = i / args.channels / args.pixels, c = i % args.channels;
    Store<T>(Load<T>(args.from, row * args.channels + c) * share, args.to, i);
  });
}

// ---- Conversions --------------------------------------------------------------------------------

__device__ inline void StoreFloat(float value, bool adds, float* to) {
  *to = adds ? *to + value : value;
}

template <typename T>
__device__ void Narrow(const LayerNarrowArgs& args) {
  ForEach(args.count, [&](uint32_t i) { Store<T>(args.from[i], args.to, i); });
}

template <typename T>
__device__ void Widen(const LayerWidenArgs& args) {
  ForEach(args.count, [&](uint32_t i) {
    StoreFloat(Load<T>(args.from, i), args.add != 0, args.to + i);
  });
}

template <typename T>
__device__ void Shift(const LayerShiftArgs& args) {
  ForEach(args.rows * args.to_height * args.to_width * args.channels, [&](uint32_t i) {
    const uint32_t c = i % args.channels, pixel = i / args.channels;
    const uint32_t row = pixel / args.to_width / args.to_height;
    // A negative coordinate becomes a large number.
    const uint32_t y = pixel / args.to_width % args.to_height + static_cast<uint32_t>(args.down);
    const uint32_t x = pixel % args.to_width + static_cast<uint32_t>(args.right);
    const bool inside = y < args.from_height && x < args.from_width;
    const uint32_t at = ((row * args.from_height + y) * args.from_width + x) * args.channels + c;
    Store<T>(inside ? Load<T>(args.from, at) : 0, args.to, i);
  });
}

// Calls body(index in the order of Keras, index in the order of cuDNN) for each value of a kernel.
template <typename Args, typename Body>
__device__ inline void ForEachOfKernel(const Args& args, const Body& body) {
  const uint32_t depth = args.taps * args.inputs;  // of one filter
  ForEach(depth * args.filters, [&](uint32_t i) { body(i % depth * args.filters + i / depth, i); });
}

template <typename T>
__device__ void PackFilters(const LayerPackFiltersArgs& args) {
  ForEachOfKernel(
      args, [&](uint32_t i, uint32_t packed) { Store<T>(args.from[i], args.to, packed); });
}

template <typename T>
__device__ void UnpackFilters(const LayerUnpackFiltersArgs& args) {
  ForEachOfKernel(args, [&](uint32_t i, uint32_t packed) {
    StoreFloat(Load<T>(args.from, packed), args.add != 0, args.to + i);
  });
}

}  // namespace

DTRUN_LAYER_KERNELS(bias, LayerBiasArgs, AddBias);
DTRUN_LAYER_KERNELS(relu_gradient, LayerReluGradientArgs, MaskByRelu);
DTRUN_LAYER_KERNELS(add, LayerAddArgs, AddTwo);
DTRUN_LAYER_KERNELS(dropout, LayerDropoutArgs, Dropout);
DTRUN_LAYER_KERNELS(dropout_gradient, LayerDropoutGradientArgs, DropoutGradient);
DTRUN_LAYER_KERNELS(column_sums, LayerColumnSumsArgs, SumChannels);
DTRUN_LAYER_KERNELS(softmax, LayerSoftmaxArgs, Softmax);
DTRUN_LAYER_KERNELS(softmax_gradient, LayerSoftmaxGradientArgs, SoftmaxGradient);
DTRUN_LAYER_KERNELS(max_pool, LayerPoolArgs, MaxPool);
DTRUN_LAYER_KERNELS(max_pool_gradient, LayerPoolGradientArgs, MaxPoolGradient);
DTRUN_LAYER_KERNELS(average_pool, LayerPoolArgs, AveragePool);
DTRUN_LAYER_KERNELS(average_pool_gradient, LayerPoolGradientArgs, AveragePoolGradient);
DTRUN_LAYER_KERNELS(global_average, LayerGlobalAverageArgs, GlobalAverage);
DTRUN_LAYER_KERNELS(global_average_gradient, LayerGlobalAverageArgs, GlobalAverageGradient);
DTRUN_LAYER_KERNELS(narrow, LayerNarrowArgs, Narrow);
DTRUN_LAYER_KERNELS(widen, LayerWidenArgs, Widen);
DTRUN_LAYER_KERNELS(shift, LayerShiftArgs, Shift);
DTRUN_LAYER_KERNELS(pack_filters, LayerPackFiltersArgs, PackFilters);
DTRUN_LAYER_KERNELS(unpack_filters, LayerUnpackFiltersArgs, UnpackFilters);

}  // namespace dtrun::models
