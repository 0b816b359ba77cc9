// Collectives of objects, strings, metrics and running statistics.

#include <dtrun/dtrun.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/include/optimizer_rig.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("objects are broadcast from one rank or gathered from all ranks in rank order") {
  const int size = GENERATE(1, 2, 3, 4);
  CHECK(OnRanks(size, [](Communicator& world) {
          for (int root = 0; root < world.size(); ++root) {
            const std::string text =
                BroadcastBytes(world, world.rank() == root ? "hello 123, 0: [1, 2]" : "", root);
            Expect(text == "hello 123, 0: [1, 2]", "of the root");
          }
          struct Pair {
            int32_t key;
            double value;
          };
          const auto rank = static_cast<size_t>(world.rank());
          const std::vector<std::vector<Pair>> all =
              AllGatherObjects(world, std::vector<Pair>(rank, {world.rank(), 0.5 * world.rank()}));
          const std::vector<std::vector<std::string>> texts =
              AllGatherStrings(world, std::vector<std::string>(rank, std::string(rank, 'x')));
          Expect(all.size() == static_cast<size_t>(world.size()), "one of every rank");
          for (size_t r = 0; r < all.size(); ++r) {
            Expect(all[r].size() == r && texts[r].size() == r, "their lengths");
            for (size_t k = 0; k < r; ++k) {
              Expect(all[r][k].key == int(r) && all[r][k].value == 0.5 * double(r), "the pair");
              Expect(texts[r][k] == std::string(r, 'x'), "the string");
            }
          }
        }) == Nothing(size));
}

TEST_CASE("metrics are averaged with the number of examples as weight if it is given") {
  CHECK(OnRanks(3, [](Communicator& world) {
          const double rank = world.rank();
          const Metrics plain = AverageMetrics(world, {{"loss", rank}, {"accuracy", 1 - rank}});
          Expect(plain == Metrics{{"accuracy", 0}, {"loss", 1}}, "plain");
          const double examples = world.rank() == 2 ? 0 : 30 - 20 * rank;  // 30, 10, 0
          const double loss = world.rank() == 2 ? NAN : rank + 1;          // no examples
          Expect(
              AverageMetrics(world, {{"loss", loss}}, examples) == Metrics{{"loss", 1.25}},
              "weighted");
          Expect(AverageMetrics(world, {}).empty(), "nothing");
        }) == Nothing(3));
}

TEST_CASE("a metric that only some ranks have is named with those ranks") {
  const Texts texts = OnRanks(3, [](Communicator& world) {
    Metrics metrics = {{"loss", 1}};
    if (world.rank() != 1) metrics["top5"] = 2;
    AverageMetrics(world, metrics);
  });
  for (const std::string& text : texts)
    CHECK(text == "the ranks have different metrics: 'top5' is on ranks 0, 2 alone");
  const Texts weights = OnRanks(2, [](Communicator& world) {
    AverageMetrics(world, {{"loss", 1}}, world.rank() == 1 ? -2 : 1);
  });
  for (const std::string& text : weights)
    CHECK_THAT(text, Contains("the metrics of rank 1 have the weight -2"));
}

TEST_CASE("BroadcastParameters also sends running statistics") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          std::vector<double> mean(3, world.rank());
          int64_t batches = 7 * world.rank();
          model.value(1)[1] = static_cast<float>(world.rank());
          BroadcastParameters(
              world, model.parameters(),
              {{"mean", Buffer(mean.data(), 3)}, {"batches", Buffer(&batches, 1)}}, 1);
          Expect(model.value(1)[1] == 1 && mean[2] == 1 && batches == 7, "those of rank 1");
        }) == Nothing(2));
}

}  // namespace
}  // namespace dtrun::testing
