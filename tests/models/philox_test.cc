#include "models/random/philox.h"

#include <catch2/catch.hpp>
#include <vector>

namespace dtrun::models {
namespace {

using Words = std::array<uint32_t, 4>;

// The test vectors of the paper's own implementation (Random123, kat_vectors).
TEST_CASE("Philox gives the published words") {
  CHECK(Philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t ones = 0xffffffff;
  CHECK(
      Philox4x32({ones, ones, ones, ones}, {ones, ones}) ==
      Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(
      Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
      Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a Philox group holds the words of consecutive counters word by word") {
  const PhiloxCounter first{7, 1, 2, 3};
  const PhiloxKey key{4, 5};
  std::vector<uint32_t> words(3 * kPhiloxGroupWords);
  PhiloxGroups(first, key, 3, words.data());
  for (uint32_t i = 0; i < 3 * kPhiloxLanes; ++i) {
    const uint32_t* group = words.data() + i / kPhiloxLanes * kPhiloxGroupWords;
    const uint32_t* lane = group + i % kPhiloxLanes;
    CHECK(
        Words{lane[0], lane[kPhiloxLanes], lane[2 * kPhiloxLanes], lane[3 * kPhiloxLanes]} ==
        Philox4x32({7 + i, 1, 2, 3}, key));
  }
}

}  // namespace
}  // namespace dtrun::models
