// Operations with the values that come out of them.

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "tests/named/named_ranks.h"

namespace dtrun::testing {
namespace {

TEST_CASE("tensors that ranks submit in different orders are reduced by name") {
  const int size = GENERATE(1, 2, 3, 4);
  CHECK(RunNamed(size, [](NamedRank& r) {
    constexpr int kTensors = 20;
    for (int step = 0; step < 3; ++step) {
      std::vector<std::vector<float>> values;
      std::vector<NamedWork> works;
      for (int i = 0; i < kTensors; ++i) {
        // Each rank begins elsewhere.
        const int name = (i * 7 + r.rank * 3) % kTensors;
        values.push_back(std::vector<float>(17, static_cast<float>(name + r.rank + step)));
      }
      for (int i = 0; i < kTensors; ++i) {
        const int name = (i * 7 + r.rank * 3) % kTensors;
        works.push_back(r.AllReduce(base::Text("tensor ", name), values[static_cast<size_t>(i)]));
      }
      for (int i = 0; i < kTensors; ++i) {
        const int name = (i * 7 + r.rank * 3) % kTensors;
        works[static_cast<size_t>(i)].Wait();
        const int sum = r.size * (name + step) + r.size * (r.size - 1) / 2;
        ExpectEqual(
            values[static_cast<size_t>(i)], std::vector<float>(17, static_cast<float>(sum)),
            base::Text("tensor ", name));
      }
    }
  }) == Nothing(size));
}

}  // namespace
}  // namespace dtrun::testing
