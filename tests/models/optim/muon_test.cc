#include "models/optim/muon.h"

#include <omp.h>

#include <algorithm>
#include <memory>

#include "tests/models/optim/problem.h"

namespace dtrun::models {
namespace {

// The iteration as published, on X itself, in double.
Doubles OrthogonalisedInDouble(const Doubles& x, size_t rows, size_t columns, int iterations) {
  double squares = 0;
  for (const double each : x) squares += each * each;
  Doubles now = x;
  for (double& each : now) each /= std::sqrt(squares);
  const auto times_transposed = [&](const Doubles& a, const Doubles& b) {  // (a b') b
    Doubles gram(rows * rows), product(rows * columns);
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < rows; ++j)
        for (size_t k = 0; k < columns; ++k)
          gram[i * rows + j] += a[i * columns + k] * b[j * columns + k];
    for (size_t i = 0; i < rows; ++i)
      for (size_t k = 0; k < rows; ++k)
        for (size_t j = 0; j < columns; ++j)
          product[i * columns + j] += gram[i * rows + k] * b[k * columns + j];
    return product;
  };
  for (int t = 0; t < iterations; ++t) {
    const Doubles third = times_transposed(now, now), fifth = times_transposed(third, now);
    for (size_t i = 0; i < now.size(); ++i)
      now[i] = 3.4445 * now[i] - 4.7750 * third[i] + 2.0315 * fifth[i];
  }
  return now;
}

Doubles SomeMatrix(size_t rows, size_t columns, int seed) {
  Doubles x;
  for (size_t i = 0; i < rows * columns; ++i)
    x.push_back(float(std::sin(double(i * i % 1009) * 0.7 + seed) + 0.3 * std::cos(double(i))));
  return x;
}

void CheckOrthogonaliser(size_t rows, size_t columns) {
  CAPTURE(rows, columns);
  const Doubles x = SomeMatrix(rows, columns, 1);
  const Doubles expected = OrthogonalisedInDouble(x, rows, columns, 5);
  Orthogonaliser orthogonaliser;
  orthogonaliser.Resize(rows, columns);
  for (size_t i = 0; i < x.size(); ++i) orthogonaliser.at(i / columns, i % columns) = float(x[i]);
  std::vector<float> value(x.size(), 1.0f);
  orthogonaliser.Apply(5, 0.5f, 2.0f, value.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst, std::abs(double(value[i]) - (0.5 - 2 * expected[i])));
  CHECK(worst < 2e-4);
}

TEST_CASE("orthogonalization of matrices of any shape matches the published iteration") {
  CheckOrthogonaliser(1, 1);
  CheckOrthogonaliser(1, 7);
  CheckOrthogonaliser(9, 32);
  CheckOrthogonaliser(40, 40);
  CheckOrthogonaliser(600, 17);
  CheckOrthogonaliser(16, 300);
}

TEST_CASE("the columns of an orthogonalized matrix have a length near 1") {
  const size_t rows = 200, columns = 10;
  const Doubles x = SomeMatrix(rows, columns, 2);
  Orthogonaliser orthogonaliser;
  orthogonaliser.Resize(rows, columns);
  for (size_t i = 0; i < x.size(); ++i) orthogonaliser.at(i / columns, i % columns) = float(x[i]);
  std::vector<float> value(x.size());
  orthogonaliser.Apply(5, 0, -1, value.data());
  for (size_t c = 0; c < columns; ++c) {
    double squares = 0;
    for (size_t r = 0; r < rows; ++r) squares += std::pow(double(value[r * columns + c]), 2);
    CHECK(std::sqrt(squares) > 0.6);
    CHECK(std::sqrt(squares) < 1.3);
  }
}

TEST_CASE("a gradient of zeros changes a matrix only by weight decay") {
  std::vector<float> value(12, 2.0f), gradient(12);
  std::vector<Parameter> parameters{
      {"kernel", Buffer(value.data(), 12), Buffer(gradient.data(), 12)}};
  Muon muon(parameters, {4}, {.learning_rate = 0.1, .weight_decay = 0.5});
  muon.Step();
  CHECK(value == std::vector<float>(12, 2.0f * (1 - 0.05f)));
}

TEST_CASE("Muon follows its formula in float64") {
  const size_t rows = 24, columns = 5;
  const bool nesterov = GENERATE(true, false);
  Doubles value = SomeMatrix(rows, columns, 3), m(rows * columns);
  std::vector<float> mine(value.begin(), value.end()), gradient(value.size());
  std::vector<float> bias{0.5f}, bias_gradient{1};
  std::vector<Parameter> parameters{
      {"kernel", Buffer(mine.data(), mine.size()), Buffer(gradient.data(), gradient.size())},
      {"bias", Buffer(bias.data(), 1), Buffer(bias_gradient.data(), 1)}};
  Muon muon(
      parameters, MatrixColumns({{3, 8, 5}, {1}}),
      {.learning_rate = 0.02, .momentum = 0.9, .nesterov = nesterov, .weight_decay = 0.3});
  for (int t = 1; t <= 10; ++t) {
    const Doubles g = SomeMatrix(rows, columns, 10 + t);
    std::copy(g.begin(), g.end(), gradient.begin());
    muon.Step();
    Doubles u(m.size());
    for (size_t i = 0; i < m.size(); ++i) {
      m[i] = 0.9 * m[i] + g[i];
      u[i] = nesterov ? g[i] + 0.9 * m[i] : m[i];
    }
    const Doubles o = OrthogonalisedInDouble(u, rows, columns, 5);
    for (size_t i = 0; i < m.size(); ++i)
      value[i] -= 0.02 * (0.2 * std::sqrt(24.0) * o[i] + 0.3 * value[i]);
  }
  double worst = 0;
  for (size_t i = 0; i < value.size(); ++i)
    worst = std::max(worst, std::abs(value[i] - double(mine[i])));
  CHECK(worst < 1e-4);
  CHECK(bias[0] == Approx(0.5 - 10 * 0.02).epsilon(1e-4));  // Adam's step for a constant gradient
}

TEST_CASE("Muon's bits do not depend on the number of threads") {
  const auto after = [](int threads) {
    omp_set_num_threads(threads);
    const Doubles x = SomeMatrix(300, 70, 4);
    std::vector<float> value(x.size()), gradient(x.begin(), x.end());
    std::vector<Parameter> parameters{
        {"kernel", Buffer(value.data(), value.size()), Buffer(gradient.data(), gradient.size())}};
    Muon muon(parameters, {70}, {});
    for (int step = 0; step < 3; ++step) muon.Step();
    return value;
  };
  const std::vector<float> alone = after(1);
  CHECK(after(2) == alone);
  CHECK(after(5) == alone);
}

TEST_CASE("Muon resumes from saved parameters and state") {
  CheckGoesOnFromState([](std::vector<Parameter>& parameters) {
    return std::make_unique<Muon>(parameters, std::vector<uint64_t>{3, 0}, MuonOptions());
  });
}

TEST_CASE("invalid options and shapes of Muon are refused by name") {
  Problem problem;
  CHECK_THROWS_WITH(
      Muon(problem.parameters, {2, 0}, {}),
      "layer.kernel has 3 elements, expected whole rows of 2");
  CHECK_THROWS_WITH(Muon(problem.parameters, {1}, {}), "columns of 1 parameters, expected 2");
  CHECK_THROWS_WITH(
      Muon(problem.parameters, {1, 0}, {.iterations = 0}), "iterations is 0, expected above 0");
}

}  // namespace
}  // namespace dtrun::models
