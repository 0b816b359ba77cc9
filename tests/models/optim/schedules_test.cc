#include "models/optim/schedules.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace dtrun::models {
namespace {

using Rates = std::vector<double>;

Rates First(uint64_t count, const Schedule& schedule) {
  Rates rates;
  for (uint64_t step = 0; step < count; ++step) rates.push_back(schedule.rate(step));
  return rates;
}

void CheckNear(const Rates& rates, const Rates& expected) {
  REQUIRE(rates.size() == expected.size());
  for (size_t i = 0; i < rates.size(); ++i) {
    CAPTURE(i);
    CHECK(rates[i] == Approx(expected[i]).epsilon(1e-12).margin(1e-12));
  }
}

TEST_CASE("a constant rate stays") { CHECK(First(3, ConstantRate{0.5}) == Rates{0.5, 0.5, 0.5}); }

TEST_CASE("a piecewise constant rate changes at its boundaries") {
  const PiecewiseConstantRate value{.boundaries = {1, 3}, .rates = {1, 0.1, 0.01}};
  CHECK(First(5, value) == Rates{1, 0.1, 0.1, 0.01, 0.01});
}

TEST_CASE("a cosine rate falls from base to final and stays") {
  const double root = std::sqrt(0.5);
  CheckNear(
      First(6, CosineDecay{.base = 3, .steps = 4, .final = 1}), {3, 2 + root, 2, 2 - root, 1, 1});
}

TEST_CASE("a cosine rate with restarts begins again with a longer and lower period") {
  CheckNear(
      First(8, CosineRestarts{.base = 4, .steps = 2, .length_factor = 2, .base_factor = 0.5}),
      {4, 2, 2, 1 + std::sqrt(0.5), 1, 1 - std::sqrt(0.5), 1,
       (1 + std::cos(std::acos(-1.0) / 8)) / 2});
  CheckNear(First(5, CosineRestarts{.base = 1, .steps = 2}), {1, 0.5, 1, 0.5, 1});
  const Schedule short_ones = CosineRestarts{.base = 1, .steps = 2};
  CHECK(short_ones.rate(2'000'000'000'001) == Approx(0.5));
}

TEST_CASE("a polynomial rate falls to final and stays") {
  CheckNear(First(6, PolynomialDecay{.base = 5, .steps = 4, .final = 1}), {5, 4, 3, 2, 1, 1});
  CheckNear(First(5, PolynomialDecay{.base = 16, .steps = 4, .power = 2}), {16, 9, 4, 1, 0});
}

TEST_CASE("an exponential rate falls by its factor smoothly or in stairs") {
  CheckNear(
      First(4, ExponentialDecay{.base = 1, .factor = 0.25, .every = 2}), {1, 0.5, 0.25, 0.125});
  CheckNear(
      First(5, ExponentialDecay{.base = 1, .factor = 0.25, .every = 2, .stairs = true}),
      {1, 1, 0.25, 0.25, 0.0625});
}

TEST_CASE("a rate with a cooldown is constant and then falls linearly to almost 0") {
  CHECK(
      First(8, Cooldown{.base = 1, .steps = 8, .fraction = 0.5}) ==
      Rates{1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2});
  CHECK(Cooldown{.base = 0.1, .steps = 8, .fraction = 0}.rate(7) == 0.1);
  CHECK(Cooldown{.base = 1, .steps = 8}.rate(9) == 0);
}

TEST_CASE("a warm-up rises linearly to the rate that follows") {
  CheckNear(
      First(5, LinearWarmup{.steps = 2, .after = PolynomialDecay{.base = 4, .steps = 4}}),
      {2, 4, 4, 3, 2});
  CheckNear(First(4, LinearWarmup{.steps = 3, .start = 1, .after = ConstantRate{4}}), {2, 3, 4, 4});
  CHECK(First(2, LinearWarmup{.after = ConstantRate{4}}) == Rates{4, 4});
}

TEST_CASE("learning rates scale linearly or with the square root") {
  CHECK(LinearlyScaled(0.1, 8) == Approx(0.8));
  CHECK(SquareRootScaled(0.1, 16) == Approx(0.4));
}

TEST_CASE("a user's own type can be a schedule") {
  struct Halves {
    void Check() const {}
    double rate(uint64_t step) const { return std::ldexp(1.0, -int(step)); }
  };
  CHECK(First(3, Halves()) == Rates{1, 0.5, 0.25});
}

TEST_CASE("an invalid schedule is refused with the setting's name") {
  const auto make = [](const auto& value) { Schedule{value}; };
  CHECK_THROWS_WITH(make(ConstantRate{-1}), "base is -1, expected at least 0");
  CHECK_THROWS_WITH(make(CosineDecay{}), "steps is 0, expected 1 or more");
  CHECK_THROWS_WITH(make(PolynomialDecay{.steps = 1, .power = 0}), "power is 0, expected above 0");
  CHECK_THROWS_WITH(make(ExponentialDecay{.every = 0}), "every is 0, expected 1 or more");
  CHECK_THROWS_WITH(
      make(Cooldown{.steps = 1, .fraction = 2}), "fraction is 2, expected from 0 to 1");
  CHECK_THROWS_WITH(
      make(CosineRestarts{.steps = 1, .length_factor = 0.5}),
      "length_factor is 0.5, expected 1 or more");
  CHECK_THROWS_WITH(
      make(PiecewiseConstantRate{{1}, {1}}),
      "rates has 1 numbers, expected 2, one more than boundaries");
  CHECK_THROWS_WITH(
      make(PiecewiseConstantRate{{2, 2}, {1, 1, 1}}),
      "boundaries has 2 after 2, expected ascending steps");
}

}  // namespace
}  // namespace dtrun::models
