#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "models/data/pipeline.h"
#include "tests/models/data/pipeline_rig.h"

namespace dtrun::models {
namespace {

using Floats = std::vector<float>;

// The image that `function` makes of `input`.
Floats Apply(
    const MapFunction& function, const ExampleShape& shape, const Floats& input, uint64_t example,
    uint64_t epoch) {
  Floats output(shape.count(), -1);
  int32_t label = 0;
  function({input.data(), output.data(), shape, &label, example, epoch});
  return output;
}

// Two pixels high, three wide, two channels: pixel i is {10 * i, 10 * i + 1}.
const ExampleShape kShape{2, 3, 2};
const Floats kImage = {0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51};
const Floats kMirrored = {20, 21, 10, 11, 0, 1, 50, 51, 40, 41, 30, 31};

TEST_CASE("a random flip mirrors about half of the images and keeps the order of channels") {
  const MapFunction flip = RandomFlip(1);
  int mirrored = 0;
  for (uint64_t example = 0; example < 2000; ++example) {
    const Floats output = Apply(flip, kShape, kImage, example, 0);
    mirrored += output == kMirrored;
    CHECK((output == kMirrored || output == kImage));
  }
  CHECK(mirrored > 900);
  CHECK(mirrored < 1100);
}

TEST_CASE("a random crop shifts by up to its padding in both directions and fills with zeros") {
  const ExampleShape shape{2, 2, 1};
  const Floats image = {1, 2, 3, 4};
  std::map<Floats, int> seen;
  for (uint64_t example = 0; example < 9000; ++example)
    ++seen[Apply(RandomCrop(1, 1), shape, image, example, 0)];
  const std::set<Floats> expected = {{1, 2, 3, 4}, {3, 4, 0, 0}, {0, 0, 1, 2},
                                     {2, 0, 4, 0}, {0, 1, 0, 3}, {4, 0, 0, 0},
                                     {0, 3, 0, 0}, {0, 0, 2, 0}, {0, 0, 0, 1}};
  REQUIRE(seen.size() == expected.size());
  for (const auto& [output, times] : seen) {
    CHECK(expected.count(output) == 1);
    CHECK(times > 800);
  }
  CHECK(Apply(RandomCrop(0, 1), kShape, kImage, 3, 0) == kImage);
}

TEST_CASE("a random crop with a padding wider than the image may give only zeros") {
  std::set<Floats> seen;
  for (uint64_t example = 0; example < 500; ++example)
    seen.insert(Apply(RandomCrop(5, 1), {1, 1, 2}, {7, 8}, example, 0));
  CHECK(seen == std::set<Floats>{{0, 0}, {7, 8}});
}

TEST_CASE("random flips and crops depend only on the seed and the example and the epoch") {
  for (const bool flips : {false, true}) {
    const auto outputs = [&](uint64_t seed, uint64_t epoch, uint64_t first) {
      const MapFunction function = flips ? RandomFlip(seed) : RandomCrop(1, seed);
      std::vector<Floats> all;
      for (uint64_t i = 0; i < 64; ++i)
        all.push_back(Apply(function, kShape, kImage, first + i, epoch));
      return all;
    };
    CHECK(outputs(1, 0, 0) == outputs(1, 0, 0));
    CHECK(outputs(1, 0, 0) != outputs(2, 0, 0));
    CHECK(outputs(1, 0, 0) != outputs(1, 1, 0));
    CHECK(outputs(1, 0, 0) != outputs(1, 0, 64));
    CHECK(outputs(1, 0, 0) != outputs(1, 0, uint64_t{1} << 32));
    CHECK(outputs(1, 0, 0) != outputs(1, uint64_t{1} << 32, 0));
  }
}

TEST_CASE("Normalize takes a mean and a deviation of each channel or one pair for all channels") {
  CHECK(Apply(Normalize({1}, {2}), {1, 2, 2}, {1, 2, 3, 5}, 0, 0) == Floats{0, 0.5f, 1, 2});
  CHECK(Apply(Normalize({1, 2}, {2, 1}), {1, 2, 2}, {1, 2, 3, 5}, 0, 0) == Floats{0, 0, 1, 3});
}

TEST_CASE("invalid settings of augmentations are refused") {
  CHECK(ErrorOf([] {
          RandomCrop(-1, 1);
        }) == "RandomCrop: found a padding of -1, expected 0 to 32768");
  CHECK(ErrorOf([] {
          Normalize({1, 2}, {1});
        }) == "Normalize: found 2 means and 1 deviations, expected as many");
  CHECK(ErrorOf([] {
          Normalize({1}, {0});
        }) == "Normalize: found a deviation of 0, expected more than 0");
  Iterator iterator(Numbers(2).Map(Normalize({1, 2}, {1, 1})).Batch(2));
  CHECK(ErrorOf([&] {
          iterator.Next();
        }) == "Normalize: found 2 means for 1 channels, expected as many");
}

}  // namespace
}  // namespace dtrun::models
