// A cuDNN without the graph API: the classic functions are enough.

#include <catch2/catch.hpp>

#include "tests/models/gpu/convolution_rig.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

TEST_CASE("a cuDNN without the graph API computes convolutions with the classic functions") {
  REQUIRE_FALSE(Cudnn::Get().graph);
  const Typed type = GENERATE(Typed{"f32", 4, 1e-5}, Typed{"bf16", 2, 1e-2}, Typed{"f16", 2, 2e-3});
  const ConvolutionExample example(type);
  CHECK(GraphWays(example.setting(), Direction::kForward).empty());
  ChosenConvolution chosen(example);
  CHECK_THAT(chosen.convolution.choice(), Catch::Contains("forward classic algorithm 1 "));
  CHECK_THAT(chosen.convolution.choice(), !Catch::Contains("graph"));
  const auto results = chosen.Results([](const auto& enqueue) { enqueue(); });
  for (const Direction direction : {Direction::kForward, Direction::kFilters, Direction::kInput})
    CHECK(
        RelativeDistance(results[static_cast<size_t>(direction)], example.Expected(direction)) <
        type.tolerance);
}

}  // namespace
}  // namespace dtrun::testing
