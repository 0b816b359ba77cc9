#include "models/train/gradient_tree.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::models {
namespace {

using Catch::Matchers::Contains;
using dtrun::testing::CommandResult;
using dtrun::testing::ReadText;
using dtrun::testing::Run;
using dtrun::testing::TemporaryFolder;

// The file that rank 0 of `ranks` ranks wrote.
std::string Trained(const std::string& ranks, const std::string& dtype) {
  TemporaryFolder folder;
  const std::string file = folder.path() + "/trained";
  const CommandResult result = Run(
      {.argv =
           {"launcher/dtrun", "--tag", "none", "-np", ranks,
            "tests/models/programs/deterministic_steps", file, dtype},
       .timeout = std::chrono::minutes(2)});
  CAPTURE(result.out, result.err);
  REQUIRE(result.exit_code == 0);
  return ReadText(file);
}

TEST_CASE("1 and 2 and 4 ranks compute the same parameters and losses even with ragged batches") {
  const std::string dtype = GENERATE("f32", "bf16");
  const std::string alone = Trained("1", dtype);
  CHECK(std::count(alone.begin(), alone.end(), '\n') == 101);
  for (const char* ranks : {"2", "4"}) CHECK(Trained(ranks, dtype) == alone);
}

TEST_CASE("a number of ranks that does not divide the tree is refused once for all ranks") {
  const CommandResult result = Run(
      {.argv =
           {"launcher/dtrun", "--tag", "none", "-np", "3",
            "tests/models/programs/deterministic_steps", "/dev/null", "f32"},
       .timeout = std::chrono::minutes(2)});
  CHECK(result.exit_code == 1);
  CHECK_THAT(
      result.err,
      Contains("a deterministic sum of 8 parts on 3 ranks: expected a power of two, at most 8\n"));
}

TEST_CASE("GradientTree::Obstacle tells why a deterministic sum is impossible") {
  using Hosts = std::vector<Host>;
  const auto obstacle = [](int leaves, int ranks, const Hosts& hosts) {
    return GradientTree::Obstacle(leaves, ranks, hosts);
  };
  CHECK(obstacle(8, 4, {{"a", 4}}) == "");
  CHECK(obstacle(8, 8, {{"a", 4}, {"b", 4}}) == "");
  CHECK(obstacle(1, 1, {{"a", 1}}) == "");
  CHECK(obstacle(6, 2, {{"a", 2}}) == "a deterministic sum of 6 parts: expected a power of two");
  CHECK(
      obstacle(8, 16, {{"a", 16}}) ==
      "a deterministic sum of 8 parts on 16 ranks: expected a power of two, at most 8");
  CHECK(
      obstacle(8, 4, {{"a", 3}, {"b", 1}}) ==
      "a deterministic sum on hosts with 3 (a) and 1 (b) ranks: expected as many on each");
}

}  // namespace
}  // namespace dtrun::models
