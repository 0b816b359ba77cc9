// The taps of a filter row and their channels are contiguous, in the input and in the filter. So
// all computations are sums over such rows (ForEachFilterRow), which compilers vectorize.

#include "tests/gpu_simulator/convolution_math.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "tests/gpu_simulator/host_math.h"

namespace dtrun::gpu_simulator {
namespace {

using Values = std::vector<double>;

Values Load(const void* from, const ConvolutionTensor& tensor) {
  Values values(static_cast<size_t>(tensor.count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = LoadValue(from, i, tensor.type);
  return values;
}

void Store(const Values& values, double factor, void* to, const ConvolutionTensor& tensor) {
  for (size_t i = 0; i < values.size(); ++i) StoreValue(factor * values[i], to, i, tensor.type);
}

void AddScaled(double factor, const double* from, double* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

// A row of one filter at one output pixel, without the taps that read padding. `x` and `w` are the
// first input and its tap in the first filter, `y` is the first channel of the pixel.
struct FilterRow {
  int64_t x, w, y;
  int64_t count;  // taps and their channels
};

template <typename Visit>
void ForEachFilterRow(const ConvolutionCall& call, const Visit& visit) {
  const ConvolutionTensor &x = call.x, &w = call.w, &y = call.y;
  const auto& [before, after, strides] = call.windows;
  for (int64_t pixel = 0; pixel < y.n * y.h * y.w; ++pixel) {
    const int64_t n = pixel / (y.h * y.w);
    const int64_t top = pixel / y.w % y.h * strides[0] - before[0];
    const int64_t left = pixel % y.w * strides[1] - before[1];
    const int64_t first = std::max<int64_t>(0, -left), end = std::min(w.w, x.w - left);
    for (int64_t r = std::max<int64_t>(0, -top); r < std::min(w.h, x.h - top) && first < end; ++r)
      visit(FilterRow{
          ((n * x.h + top + r) * x.w + left + first) * x.c, (r * w.w + first) * w.c, pixel * y.c,
          (end - first) * x.c});
  }
}

// Transposes the filters to (taps and channels, filters), so that the weights of one input are
// contiguous.
Values ByInput(const Values& filters, const ConvolutionTensor& w) {
  const int64_t inputs = w.h * w.w * w.c;
  Values flipped(filters.size());
  for (int64_t k = 0; k < w.n; ++k)
    for (int64_t i = 0; i < inputs; ++i)
      flipped[static_cast<size_t>(i * w.n + k)] = filters[static_cast<size_t>(k * inputs + i)];
  return flipped;
}

Values Forward(const ConvolutionCall& call) {
  const int64_t filters = call.w.n;
  const Values x = Load(call.x_data, call.x);
  const Values w = ByInput(Load(call.w_data, call.w), call.w);
  Values y(static_cast<size_t>(call.y.count()));
  ForEachFilterRow(call, [&](const FilterRow& row) {
    for (int64_t i = 0; i < row.count; ++i)
      AddScaled(
          x[static_cast<size_t>(row.x + i)], &w[static_cast<size_t>((row.w + i) * filters)],
          &y[static_cast<size_t>(row.y)], filters);
  });
  return y;
}

Values ToFilters(const ConvolutionCall& call) {
  const int64_t filters = call.w.n, inputs = call.w.h * call.w.w * call.w.c;
  const Values x = Load(call.x_data, call.x), y = Load(call.y_data, call.y);
  Values w(static_cast<size_t>(call.w.count()));
  ForEachFilterRow(call, [&](const FilterRow& row) {
    for (int64_t k = 0; k < filters; ++k)
      AddScaled(
          y[static_cast<size_t>(row.y + k)], &x[static_cast<size_t>(row.x)],
          &w[static_cast<size_t>(k * inputs + row.w)], row.count);
  });
  return w;
}

Values ToInput(const ConvolutionCall& call) {
  const int64_t filters = call.w.n, inputs = call.w.h * call.w.w * call.w.c;
  const Values w = Load(call.w_data, call.w), y = Load(call.y_data, call.y);
  Values x(static_cast<size_t>(call.x.count()));
  ForEachFilterRow(call, [&](const FilterRow& row) {
    for (int64_t k = 0; k < filters; ++k)
      AddScaled(
          y[static_cast<size_t>(row.y + k)], &w[static_cast<size_t>(k * inputs + row.w)],
          &x[static_cast<size_t>(row.x)], row.count);
  });
  return x;
}

}  // namespace

bool ConvolutionWindows::IsValid() const {
  return std::min({before[0], before[1], after[0], after[1]}) >= 0 &&
         std::min(strides[0], strides[1]) >= 1;
}

bool ConvolutionCall::Fits() const {
  const auto fits = [&](size_t side, int64_t input, int64_t filter, int64_t output) {
    const int64_t steps = input + windows.before[side] + windows.after[side] - filter;
    return steps >= 0 && output == steps / windows.strides[side] + 1;
  };
  return windows.IsValid() && x.n == y.n && x.c == w.c && y.c == w.n && fits(0, x.h, w.h, y.h) &&
         fits(1, x.w, w.w, y.w) && x.type == w.type && x.type == y.type;
}

void ConvolutionCall::Compute() const { Write(1); }

void ConvolutionCall::ComputeByChance() const {
  static std::atomic<int> calls{0};
  Write(2 + calls++);
}

void ConvolutionCall::Write(double factor) const {
  switch (kind) {
    case ConvolutionKind::kForward: return Store(Forward(*this), factor, y_data, y);
    case ConvolutionKind::kFilters: return Store(ToFilters(*this), factor, w_data, w);
    case ConvolutionKind::kInput: return Store(ToInput(*this), factor, x_data, x);
  }
}

}  // namespace dtrun::gpu_simulator
