// The timeline of ranks on two hosts. The hosts share one clock, so a measured offset must be 0
// within its uncertainty.

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <string>

#include "tests/multihost/rig.h"
#include "tests/support/json.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;
using nlohmann::json;

json Validated(const std::string& path, std::string* found) {
  const CommandResult result =
      Run(Command{.argv = {"/usr/bin/python3", "tests/support/check_trace.py", path}});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  *found = result.out;
  return ReadJson(path);
}

void CheckClocks(const json& document) {
  for (const json& rank : document["otherData"]["ranks"]) {
    CAPTURE(rank.dump());
    const bool first_host = rank["host"] == "h1";
    const double offset = rank["clock_offset_us"], uncertainty = rank["clock_uncertainty_us"];
    CHECK(std::abs(offset) <= uncertainty);
    CHECK((uncertainty > 0) == !first_host);
    CHECK(uncertainty < 1e6);
  }
}

TEST_CASE("--timeline merges the ranks of two hosts on one clock") {
  if (Skipped()) return;
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace";
  const CommandResult result = Run(
      OnHosts({"launcher/dtrun", "-H", "h1:2,h2:2", "--timeline", path, "tests/ranks/steps", "8"}));
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  std::string found;
  const json document = Validated(path, &found);
  CAPTURE(found);
  for (const std::string& rank :
       {std::string("0"), std::string("1"), std::string("2"), std::string("3")}) {
    CHECK_THAT(found, Contains(rank + " X \"step\" 8\n"));
    CHECK_THAT(found, Contains(rank + " X \"all_reduce\" 8\n"));
  }
  CHECK(document["otherData"]["ranks"].size() == 4);
  CheckClocks(document);
}

TEST_CASE("timelines written at run time and after a killed rank hold the ranks of both hosts") {
  if (Skipped()) return;
  const TemporaryFolder folder;
  const std::string own = folder.path() + "/own", path = folder.path() + "/trace";
  CHECK(
      Run(OnHosts({"launcher/dtrun", "-H", "h1:1,h2:2", "tests/ranks/steps", "4", own}))
          .exit_code == 0);
  std::string found;
  CheckClocks(Validated(own, &found));
  CHECK_THAT(found, Contains("2 X \"step\" 4\n"));

  CHECK(
      Run(OnHosts(
              {"launcher/dtrun", "-H", "h1:1,h2:1", "--timeline", path, "tests/ranks/steps", "4",
               "kill"}))
          .exit_code == 128 + 9);
  CheckClocks(Validated(path, &found));
  CHECK_THAT(found, Contains("1 X \"step\" 4\n"));
  CHECK_THAT(found, Contains("0 X \"all_reduce\" 5\n"));
}

}  // namespace
