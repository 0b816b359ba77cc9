// ShardedOptimizer in processes.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace dtrun::testing {
namespace {

CommandResult Sharded(const std::string& ranks, const std::string& backend) {
  return Run({
      .argv =
          {"launcher/dtrun", "--tag", "none", "--oversubscribe", "-np", ranks,
           "tests/ranks/sharded"},
      .environment = {{"DTRUN_BACKEND", backend}},
  });
}

TEST_CASE("sharded ranks compute the values of one rank and pass on their optimizer state") {
  const std::string ranks = GENERATE("2", "4");
  const CommandResult mapped = Sharded(ranks, "auto");
  CAPTURE(mapped.err);
  CHECK(mapped.out == "shm: both ways, 0 wrong\n");
  CHECK(mapped.exit_code == 0);
  const CommandResult copying = Sharded(ranks, "mpi");
  CAPTURE(copying.err);
  CHECK(copying.out == "mpi: a copy each, 0 wrong\n");
  CHECK(copying.exit_code == 0);
}

TEST_CASE("a process without a launcher holds all shards") {
  const CommandResult alone = Run({.argv = {"tests/ranks/sharded"}});
  CHECK(alone.out == "self: both ways, 0 wrong\n");
  CHECK(alone.exit_code == 0);
}

}  // namespace
}  // namespace dtrun::testing
