// The taps of a filter row and their channels are contiguous, in the input and in the filter. So
// all computations are sums over such rows, which compilers vectorize.

#include "tests/gpu_simulator/convolution_math.h"

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

// Calls visit(first input of a window, first output of its pixel).
template <typename Visit>
void ForEachWindow(const ConvolutionCall& call, const Visit& visit) {
  const ConvolutionTensor &x = call.x, &y = call.y;
  for (int64_t n = 0; n < y.n; ++n)
    for (int64_t h = 0; h < y.h; ++h)
      for (int64_t w = 0; w < y.w; ++w)
        visit(((n * x.h + h) * x.w + w) * x.c, ((n * y.h + h) * y.w + w) * y.c);
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
  const int64_t row = call.w.w * call.w.c, stride = call.x.w * call.x.c, filters = call.y.c;
  const Values x = Load(call.x_data, call.x);
  const Values w = ByInput(Load(call.w_data, call.w), call.w);
  Values y(static_cast<size_t>(call.y.count()));
  ForEachWindow(call, [&](int64_t at_x, int64_t at_y) {
    for (int64_t r = 0; r < call.w.h; ++r)
      for (int64_t i = 0; i < row; ++i)
        AddScaled(
            x[static_cast<size_t>(at_x + r * stride + i)],
            &w[static_cast<size_t>((r * row + i) * filters)], &y[static_cast<size_t>(at_y)],
            filters);
  });
  return y;
}

Values ToFilters(const ConvolutionCall& call) {
  const int64_t row = call.w.w * call.w.c, stride = call.x.w * call.x.c;
  const Values x = Load(call.x_data, call.x), y = Load(call.y_data, call.y);
  Values w(static_cast<size_t>(call.w.count()));
  ForEachWindow(call, [&](int64_t at_x, int64_t at_y) {
    for (int64_t k = 0; k < call.y.c; ++k)
      for (int64_t r = 0; r < call.w.h; ++r)
        AddScaled(
            y[static_cast<size_t>(at_y + k)], &x[static_cast<size_t>(at_x + r * stride)],
            &w[static_cast<size_t>((k * call.w.h + r) * row)], row);
  });
  return w;
}

Values ToInput(const ConvolutionCall& call) {
  const int64_t row = call.w.w * call.w.c, stride = call.x.w * call.x.c;
  const Values w = Load(call.w_data, call.w), y = Load(call.y_data, call.y);
  Values x(static_cast<size_t>(call.x.count()));
  ForEachWindow(call, [&](int64_t at_x, int64_t at_y) {
    for (int64_t k = 0; k < call.y.c; ++k)
      for (int64_t r = 0; r < call.w.h; ++r)
        AddScaled(
            y[static_cast<size_t>(at_y + k)], &w[static_cast<size_t>((k * call.w.h + r) * row)],
            &x[static_cast<size_t>(at_x + r * stride)], row);
  });
  return x;
}

}  // namespace

bool ConvolutionCall::Fits() const {
  return x.n == y.n && x.c == w.c && y.c == w.n && y.h == x.h - w.h + 1 && y.w == x.w - w.w + 1 &&
         x.type == w.type && x.type == y.type;
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
