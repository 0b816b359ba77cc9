// Jobs with random faults: see storm.

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/multihost/rig.h"
#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

std::string Wish(const char* name, const std::string& otherwise) {
  const char* wish = std::getenv(name);
  return wish == nullptr ? otherwise : wish;
}

void CheckPromises(Command command) {
  command.argv.insert(
      command.argv.end(),
      {"tests/chaos/storm", "--jobs", Wish("STORM_JOBS", "60"), "--seed", Wish("STORM_SEED", "1")});
  command.timeout = std::chrono::hours(1);
  const CommandResult result = Run(command);
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
}

TEST_CASE("dtrun keeps its promises after a random fault in a job on this host", "[here]") {
  CheckPromises({});
}

TEST_CASE("dtrun keeps its promises after a random fault in a job on several hosts", "[hosts]") {
  if (Skipped()) return;
  const std::string hosts = GENERATE(as<std::string>(), "h1,h2", "h1,h2,h3");
  CheckPromises(OnHosts({"env", "STORM_HOSTS=" + hosts}, {"--names", hosts}));
}

}  // namespace
}  // namespace dtrun::testing
