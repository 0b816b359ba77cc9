// The MPI backend between real processes under dtrun and Open MPI.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;
using dtrun::testing::WithoutWaits;

CommandResult Job(int np, const std::string& scenario, int minutes = 5) {
  return Run(Command{
      .argv =
          {"launcher/dtrun", "--tag", "none", "-np", std::to_string(np), "tests/ops/mpi/mpi_ranks",
           scenario},
      .timeout = std::chrono::minutes(minutes)});
}

void CheckRight(const CommandResult& result) {
  CHECK(result.err == "");
  CHECK_THAT(result.out, Catch::Matchers::EndsWith(" checks, 0 wrong\n"));
  CHECK(result.exit_code == 0);
}

TEST_CASE("every operation gives the right result for every type and size and form") {
  CheckRight(Job(GENERATE(1, 2, 3, 4), "all_forms"));
}

TEST_CASE("reductions with scale and divisor have the bits of Reduce over the ranks in order") {
  CheckRight(Job(GENERATE(1, 2, 3, 8), "arithmetics"));
}

TEST_CASE("hundreds of operations can be in flight at once") {
  CheckRight(Job(GENERATE(2, 3, 8), "many"));
}

TEST_CASE("communicators that share ranks do not wait for each other") {
  CheckRight(Job(GENERATE(2, 3, 8), "overlapping"));
}

TEST_CASE("messages match in order even if one side starts them much earlier") {
  CheckRight(Job(GENERATE(2, 3, 8), "out_of_step"));
}

TEST_CASE("the engine's own thread can drive all operations") { CheckRight(Job(3, "with_thread")); }

TEST_CASE("ranks that disagree over MPI get an error with the call of each rank and can go on") {
  const CommandResult result = Job(3, "mismatches");
  std::string expected;
  const auto add = [&expected](const std::string& what, const std::string& told) {
    for (int r = 0; r < 3; ++r) {
      expected += what + ", " + std::to_string(r) + ": the ranks disagree on " + told + "\n";
    }
  };
  add("counts",
      "collective #1: rank 0 called all_reduce (f32, 100000 elements, sum); ranks 1 and 2 called "
      "all_reduce (f32, 100001 elements, sum)");
  add("kinds",
      "collective #4: ranks 1 and 2 called barrier; rank 0 called broadcast (f32, 4 elements, "
      "root 0)");
  add("table", "collective #7: all_gather: rank 1 sends 10 elements to rank 0, which expects 11");
  add("duplicate",
      "collective #1 of world/1: rank 0 called broadcast (f32, 1 elements, root 0); ranks 1 and 2 "
      "called broadcast (f32, 1 elements, root 1)");
  const std::string message =
      ": the ranks disagree on message #1: rank 0 sends 4 elements of f32, rank 1 expects 5 "
      "elements of f32\n";
  expected += "message, 0" + message + "message, 1" + message + "message, 2: nothing\n";
  const std::string types =
      ": the ranks disagree on message #2: rank 0 sends 100000 elements of f32, rank 1 expects "
      "100000 elements of f64\n";
  expected += "types, 0" + types + "types, 1" + types + "types, 2: nothing\n";
  CHECK(result.out == expected + "3 checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("a rank that gives up names the absent rank and other communicators go on") {
  const CommandResult result = Job(3, "missing");
  CHECK(
      WithoutWaits(result.out, 3) ==
      "gave up after N s: collective #1 of world/2, all_reduce (f32, 500000 elements, sum), waits "
      "for rank 2 to call it\n"
      "gave up after N s: message #1 of world/3, receive (f32, 1 elements, from rank 2), waits for "
      "rank 2 to call it\n"
      "2 checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("operations may have more bytes than an int of MPI can count", "[.full]") {
  CheckRight(Job(2, "huge"));
}

}  // namespace
