// StepMatrix writes the momentum of a matrix into the Orthogonaliser, which subtracts the
// orthogonal matrix from the values. The Orthogonaliser computes the product of all polynomials of
// the iteration in ComputeFactor, and applies the product to the matrix once, with MultiplyRows.
// StepOther updates all other parameters with Adam's formula.

#include "models/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "models/function_clones.h"
#include "models/message_text.h"
#include "models/optim/update_rules.h"

namespace dtrun::models {

/// The rows, columns and strides of all matrices are multiples of this. Matrices are row-major.
constexpr size_t kMatrixBlock = 16;

/// Writes rows [first, first + kMatrixBlock) of gram = x' x, from column `first` on. x is (rows,
/// stride), gram is (stride, stride). Sums 256 rows in f32, and these sums in f64.
void GramRows(const float* x, size_t rows, size_t stride, size_t first, double* gram);

/// Writes rows [first, first + kMatrixBlock) of c = a b. All matrices are (size, size).
void ProductRows(const double* a, const double* b, size_t size, size_t first, double* c);

/// Overwrites rows [first, first + kMatrixBlock) of x with x b. x is (rows, stride), b is (stride,
/// stride). `scratch` holds kMatrixBlock * stride elements.
void MultiplyRows(float* x, const float* b, size_t stride, size_t first, float* scratch);

namespace {

void CheckColumns(const std::vector<Parameter>& parameters, const std::vector<uint64_t>& columns) {
  if (columns.size() != parameters.size())
    RefuseArgument(
        Text("columns of ", columns.size(), " parameters, expected ", parameters.size()));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const uint64_t count = parameters[i].value.count;
    if (columns[i] > 0 && count % columns[i] != 0)
      RefuseArgument(Text(
          parameters[i].name, " has ", count, " elements, expected whole rows of ", columns[i]));
  }
}

}  // namespace

std::vector<uint64_t> MatrixColumns(const std::vector<std::vector<int>>& shapes) {
  std::vector<uint64_t> columns;
  for (const std::vector<int>& shape : shapes)
    columns.push_back(shape.size() < 2 ? 0 : static_cast<uint64_t>(shape.back()));
  return columns;
}

Muon::Muon(
    std::vector<Parameter>& parameters, const std::vector<uint64_t>& columns,
    const MuonOptions& options, UpdateDevice& device)
    : parameters_(parameters), options_(options), device_(device) {
  CheckParameters(parameters, device);
  CheckColumns(parameters, columns);
  CheckPositive("learning_rate", options.learning_rate);
  CheckFraction("momentum", options.momentum);
  CheckNotNegative("weight_decay", options.weight_decay);
  CheckPositive("iterations", options.iterations);
  CheckFraction("beta1", options.beta1);
  CheckFraction("beta2", options.beta2);
  CheckPositive("epsilon", options.epsilon);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto allocate = [&] {
      return device.Allocate(parameters[i].value.count, DType::kF32, memory_.emplace_back());
    };
    State state;
    state.columns = columns[i];
    if (!EndsWithOneOf(parameters[i].name, options.not_decayed))
      state.decay = static_cast<float>(options.weight_decay);
    if (columns[i] > 0) {
      state.momentum = allocate();
    } else {
      state.m = allocate();
      state.v = allocate();
    }
    states_.push_back(state);
  }
}

std::vector<NamedBuffer> Muon::state() {
  std::vector<NamedBuffer> all;
  const auto append = [&](const char* name, Buffer State::*values) {
    for (size_t i = 0; i < states_.size(); ++i)
      if ((states_[i].*values).data != nullptr)
        all.push_back({Text(name, "/", parameters_[i].name), states_[i].*values});
  };
  append("muon.momentum", &State::momentum);
  append("muon.m", &State::m);
  append("muon.v", &State::v);
  all.push_back({"muon.step", Buffer(&step_, 1)});
  return all;
}

void Muon::set_learning_rate(double rate) {
  CheckNotNegative("learning_rate", rate);
  options_.learning_rate = rate;
}

void Muon::Step() {
  ++step_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (!parameter.has_gradient || parameter.value.count == 0) continue;
    if (states_[i].columns > 0) {
      StepMatrix(parameter, states_[i]);
    } else {
      StepOther(parameter, states_[i]);
    }
  }
}

void Muon::StepMatrix(const Parameter& parameter, State& state) {
  const size_t columns = state.columns, rows = parameter.value.count / columns;
  const float* const gradient = Load(parameter.gradient, copies_[0]);
  float* const velocity = Load(state.momentum, copies_[1]);
  float* const value = Load(parameter.value, copies_[2]);
  const auto momentum = static_cast<float>(options_.momentum);
  orthogonaliser_.Resize(rows, columns);
  for (size_t r = 0, i = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c, ++i) {
      float& m = velocity[i];
      m = momentum * m + gradient[i];
      orthogonaliser_.at(r, c) = options_.nesterov ? gradient[i] + momentum * m : m;
    }
  const double rate = options_.learning_rate;
  orthogonaliser_.Apply(
      options_.iterations, static_cast<float>(1 - rate * static_cast<double>(state.decay)),
      static_cast<float>(rate * 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)))),
      value);
  Store(velocity, state.momentum);
  Store(value, parameter.value);
}

// Returns the values in host memory: those of the buffer, or a copy if it lies on a GPU.
float* Muon::Load(const Buffer& buffer, std::vector<float>& copy) {
  if (buffer.device < 0) return static_cast<float*>(buffer.data);
  copy.resize(buffer.count);
  device_.Copy(buffer, Buffer(copy.data(), copy.size()));
  return copy.data();
}

void Muon::Store(float* values, const Buffer& buffer) {
  if (buffer.device >= 0) device_.Copy(Buffer(values, buffer.count), buffer);
}

void Muon::StepOther(const Parameter& parameter, State& state) {
  const auto t = static_cast<double>(step_);
  const double rate = options_.learning_rate;
  AdamFactors factors;
  factors.rate = static_cast<float>(
      rate * std::sqrt(1 - std::pow(options_.beta2, t)) / (1 - std::pow(options_.beta1, t)));
  factors.m_share = static_cast<float>(1 - options_.beta1);
  factors.v_share = static_cast<float>(1 - options_.beta2);
  factors.epsilon = static_cast<float>(options_.epsilon);
  factors.decay = static_cast<float>(rate) * state.decay;
  device_.Adam(
      static_cast<const float*>(parameter.gradient.data), parameter.value.count, factors,
      static_cast<float*>(state.m.data), static_cast<float*>(state.v.data),
      static_cast<float*>(parameter.value.data));
}

namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

size_t RoundUp(size_t n) { return (n + kMatrixBlock - 1) / kMatrixBlock * kMatrixBlock; }

// Calls body(first) for first = 0, kMatrixBlock, ... below `rows`. The result of a block does not
// depend on the thread that computes it.
template <typename Body>
void ForEachBlock(size_t rows, const Body& body) {
  const auto blocks = static_cast<int64_t>(rows / kMatrixBlock);
#pragma omp parallel for schedule(dynamic)
  for (int64_t block = 0; block < blocks; ++block) body(static_cast<size_t>(block) * kMatrixBlock);
}

void Multiply(
    const std::vector<double>& a, const std::vector<double>& b, size_t size,
    std::vector<double>& product) {
  ForEachBlock(
      size, [&](size_t first) { ProductRows(a.data(), b.data(), size, first, product.data()); });
}

}  // namespace

void Orthogonaliser::Resize(size_t rows, size_t columns) {
  wide_ = columns > rows;
  rows_ = std::max(rows, columns);
  columns_ = std::min(rows, columns);
  padded_rows_ = RoundUp(rows_);
  stride_ = RoundUp(columns_);
  matrix_.assign(padded_rows_ * stride_, 0);
  factor_.resize(stride_ * stride_);
  for (std::vector<double>* each : {&gram_, &square_, &polynomial_, &product_, &scratch_})
    each->resize(stride_ * stride_);
}

void Orthogonaliser::ComputeGram() {
  ForEachBlock(stride_, [&](size_t first) {
    GramRows(matrix_.data(), padded_rows_, stride_, first, gram_.data());
  });
  for (size_t i = 0; i < stride_; ++i)
    for (size_t j = 0; j < i; ++j) gram_[i * stride_ + j] = gram_[j * stride_ + i];
}

// Each iteration multiplies X by a polynomial Q of X' X. P is the product of the polynomials, and G
// is X' X of the next iteration, computed without X. Therefore two passes over the long side of the
// matrix are enough, instead of one pass per iteration:
//   G = X' X,  P = I;   Q = a I + b G + c G^2,  P = P Q,  G = G Q^2   (all matrices commute)
// P, Q and G are f64: five iterations multiply small singular values by 480, and errors of G by the
// square of 480.
bool Orthogonaliser::ComputeFactor(int iterations) {
  const size_t n = stride_;
  double squares = 0;
  for (size_t i = 0; i < columns_; ++i) squares += gram_[i * n + i];
  if (!(squares > 0)) return false;
  for (double& g : gram_) g /= squares;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) product_[i * n + j] = i == j ? 1 / std::sqrt(squares) : 0;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    Multiply(gram_, gram_, n, square_);
    for (size_t k = 0; k < n * n; ++k) polynomial_[k] = kB * gram_[k] + kC * square_[k];
    for (size_t i = 0; i < n; ++i) polynomial_[i * n + i] += kA;
    Multiply(product_, polynomial_, n, scratch_);
    std::swap(product_, scratch_);
    if (iteration + 1 == iterations) break;
    Multiply(gram_, polynomial_, n, scratch_);
    Multiply(scratch_, polynomial_, n, gram_);
  }
  std::copy(product_.begin(), product_.end(), factor_.begin());
  return true;
}

void Orthogonaliser::Apply(int iterations, float keep, float rate, float* value) {
  ComputeGram();
  const bool moves = ComputeFactor(iterations);
  ForEachBlock(padded_rows_, [&](size_t first) {
    std::vector<float> scratch(kMatrixBlock * stride_);
    if (moves) MultiplyRows(matrix_.data(), factor_.data(), stride_, first, scratch.data());
  });
  const size_t rows = wide_ ? columns_ : rows_, columns = wide_ ? rows_ : columns_;
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c)
      value[r * columns + c] = keep * value[r * columns + c] - rate * at(r, c);
}

namespace {

// Eight rows of one vector each fit the registers of AVX2 and of AVX-512.
constexpr size_t kRows = 8;
typedef float Floats __attribute__((vector_size(16 * sizeof(float))));
typedef double Doubles __attribute__((vector_size(8 * sizeof(double))));

// sums[i] += sum over k < count of a[k * a_step + i * a_row] * (the vector at b + k * b_step)
template <typename Vector, typename T>
DTRUN_KERNEL_PART void AddProducts(
    const T* a, size_t a_step, size_t a_row, const T* b, size_t b_step, size_t count,
    Vector* sums) {
  Vector s0 = sums[0], s1 = sums[1], s2 = sums[2], s3 = sums[3];
  Vector s4 = sums[4], s5 = sums[5], s6 = sums[6], s7 = sums[7];
  for (size_t k = 0; k < count; ++k, a += a_step, b += b_step) {
    Vector right;
    std::memcpy(&right, b, sizeof(right));
    s0 += a[0] * right;
    s1 += a[a_row] * right;
    s2 += a[2 * a_row] * right;
    s3 += a[3 * a_row] * right;
    s4 += a[4 * a_row] * right;
    s5 += a[5 * a_row] * right;
    s6 += a[6 * a_row] * right;
    s7 += a[7 * a_row] * right;
  }
  sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
  sums[4] = s4, sums[5] = s5, sums[6] = s6, sums[7] = s7;
}

}  // namespace

DTRUN_KERNEL void GramRows(const float* x, size_t rows, size_t stride, size_t first, double* gram) {
  constexpr size_t kRowsOfSum = 256, kColumns = 16;
  for (size_t i = first; i < first + kMatrixBlock; ++i)
    std::fill(gram + i * stride + first, gram + (i + 1) * stride, 0.0);
  for (size_t row = 0; row < rows; row += kRowsOfSum) {
    const float* block = x + row * stride;
    const size_t count = std::min(kRowsOfSum, rows - row);
    for (size_t i = first; i < first + kMatrixBlock; i += kRows)
      for (size_t j = first; j < stride; j += kColumns) {
        Floats sums[kRows] = {};
        AddProducts(block + i, stride, 1, block + j, stride, count, sums);
        for (size_t r = 0; r < kRows; ++r)
          for (size_t c = 0; c < kColumns; ++c)
            gram[(i + r) * stride + j + c] += static_cast<double>(sums[r][c]);
      }
  }
}

DTRUN_KERNEL void ProductRows(
    const double* a, const double* b, size_t size, size_t first, double* c) {
  constexpr size_t kColumns = 8;
  for (size_t j = 0; j < size; j += kColumns)
    for (size_t i = first; i < first + kMatrixBlock; i += kRows) {
      Doubles sums[kRows] = {};
      AddProducts(a + i * size, 1, size, b + j, size, size, sums);
      for (size_t r = 0; r < kRows; ++r)
        std::memcpy(c + (i + r) * size + j, &sums[r], sizeof(Doubles));
    }
}

DTRUN_KERNEL void MultiplyRows(
    float* x, const float* b, size_t stride, size_t first, float* scratch) {
  constexpr size_t kColumns = 16;
  float* block = x + first * stride;
  for (size_t j = 0; j < stride; j += kColumns)
    for (size_t i = 0; i < kMatrixBlock; i += kRows) {
      Floats sums[kRows] = {};
      AddProducts(block + i * stride, 1, stride, b + j, stride, stride, sums);
      for (size_t r = 0; r < kRows; ++r)
        std::memcpy(scratch + (i + r) * stride + j, &sums[r], sizeof(Floats));
    }
  std::copy(scratch, scratch + kMatrixBlock * stride, block);
}

}  // namespace dtrun::models
