// Rank 1 calls Shutdown while the other ranks wait for it.

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "tests/ranks/dtrun_job.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace {

using Catch::Contains;
using dtrun::testing::CommandResult;
using dtrun::testing::CountOf;
using dtrun::testing::ReadJson;
using dtrun::testing::RunJob;

// The time limits are longer than a test may take, so no test passes by waiting for them.
CommandResult Leave(const std::string& backend, const std::string& what) {
  return RunJob(
      {"-np", "3", "tests/ranks/early_leaver", what},
      {{"DTRUN_BACKEND", backend}, {"DTRUN_TIMEOUT_S", "600"}, {"DTRUN_STALL_WARNING_S", "300"}});
}

void CheckNobodyWaits(
    const std::string& backend, const std::string& what, const std::string& waits) {
  const CommandResult result = Leave(backend, what);
  CAPTURE(backend, what, result.out, result.err);
  CHECK(result.exit_code != 0);
  CHECK(CountOf(result.out, ": 3: gave up: ") >= 1);  // kPeerLost; dtrun may end the second rank
  CHECK_THAT(result.out, Contains(waits) && Contains("; rank 1 has called Shutdown\n"));
}

TEST_CASE("no collective waits for a rank that has called Shutdown") {
  CheckNobodyWaits(
      GENERATE("shm", "mpi", "hierarchical"), "duplicate",
      "collective #2 of world/1, all_reduce (f32, 4 elements, sum), waits for rank 1 to call it");
}

TEST_CASE("dtrun reports a rank that called Shutdown too early as the culprit") {
  const dtrun::testing::TemporaryFolder folder;
  const std::string file = folder.path() + "/report.json";
  const CommandResult result = RunJob(
      {"-np", "3", "--report-json", file, "tests/ranks/early_leaver",
       GENERATE("duplicate", "message")});
  CAPTURE(result.err);
  CHECK(ReadJson(file)["culprit"]["rank"] == 1);
}

TEST_CASE("no message waits for a rank that has called Shutdown") {
  CheckNobodyWaits(
      "shm", "message",
      "message #1 of world/1, receive (f32, 4 elements, from rank 1), waits for rank 1 to call it");
}

TEST_CASE("no named tensor and no join waits for a rank that has called Shutdown") {
  CheckNobodyWaits(
      GENERATE("shm", "hierarchical"), "named",
      "tensor 'x', all_reduce (f32[4], sum), submitted by ranks 0 and 2, waits for rank 1; rank 1 "
      "submitted nothing so far; rank 1 has called Shutdown");
  CheckNobodyWaits(
      "shm", "gone_queue", "of the named queue, which has under way 'x', all_reduce (f32[4], sum)");
  CheckNobodyWaits("shm", "joined", "join waits for ");
}

TEST_CASE("a Shutdown that meets an all-reduce of other ranks is reported as a mismatch") {
  const CommandResult result = Leave(GENERATE("shm", "mpi", "hierarchical"), "world");
  CHECK_THAT(
      result.out, Contains("ranks 0 and 2 called all_reduce (f32, 4 elements, sum); rank 1 called "
                           "shutdown\n"));
  CHECK(result.exit_code == 3);
}

TEST_CASE("ranks may call Shutdown at different times") {
  const CommandResult result = Leave(GENERATE("shm", "mpi", "hierarchical"), "late");
  CHECK(result.out == "");
  CHECK(result.err == "");
  CHECK(result.exit_code == 0);
}

}  // namespace
