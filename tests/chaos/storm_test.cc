// Jobs of one host that are struck at random: see storm.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

std::string Wish(const char* name, const std::string& otherwise) {
  const char* wish = std::getenv(name);
  return wish == nullptr ? otherwise : wish;
}

TEST_CASE("whatever becomes of a process of a job, dtrun keeps its promises") {
  const std::string jobs = Wish("STORM_JOBS", "60"), seed = Wish("STORM_SEED", "1");
  const CommandResult result = Run(
      {.argv = {"tests/chaos/storm", "--jobs", jobs, "--seed", seed},
       .timeout = std::chrono::hours(1)});
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
}

}  // namespace
}  // namespace dtrun::testing
