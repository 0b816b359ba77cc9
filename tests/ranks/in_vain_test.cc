// Ranks that wait for an absent rank: their errors, dtrun's report and the end of the job.

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "tests/ranks/dtrun_job.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::CountOf;
using dtrun::testing::kDtrun;
using dtrun::testing::ReadJson;
using dtrun::testing::Run;
using dtrun::testing::TemporaryFolder;
using dtrun::testing::WithoutWaits;
using nlohmann::json;

// Runs a job in which rank 1 stops after collective #1.
CommandResult JobInVain(
    const std::string& what, std::vector<std::pair<std::string, std::string>> environment = {},
    const std::vector<std::string>& launcher = {kDtrun}, const std::string& timeout_s = "2") {
  environment.insert(
      environment.end(),
      {{"DTRUN_TIMEOUT_S", timeout_s}, {"DTRUN_STALL_WARNING_S", timeout_s == "2" ? "1" : "60"}});
  std::vector<std::string> argv = launcher;
  if (launcher[0] != "mpirun") argv.insert(argv.end(), {"--tag", "none"});
  argv.insert(argv.end(), {"-np", "3", "tests/ranks/in_vain", what});
  return Run(Command{.argv = argv, .environment = environment});
}

const std::string kBehind =
    "rank 1 is 1 collective behind on world: it last finished #1, barrier; ranks 0 and 2 wait in "
    "#2, all_reduce (f32, 4 elements, sum)\n";
const std::string kSecond = "collective #2, all_reduce (f32, 4 elements, sum)";

TEST_CASE("a rank that never comes is named with its last collective and the job ends with 76") {
  const std::string backend = GENERATE("shm", "mpi", "hierarchical");
  const std::string what = GENERATE("absent", "uncaught");
  const CommandResult result = JobInVain(what, {{"DTRUN_BACKEND", backend}});
  CAPTURE(backend, what, result.err);
  CHECK(result.exit_code == 76);
  const std::string late = kSecond +
                           ", waits for rank 1 to call it; rank 1 last finished "
                           "collective #1, barrier, ";
  CHECK(CountOf(WithoutWaits(result.err, 1), "warning: waiting for N s: " + late) == 2);
  CHECK(CountOf(result.err, "warning: waiting for ") == 2);
  const std::string err = WithoutWaits(result.err, 2);
  CHECK(
      CountOf(err, "dtrun: rank 0 on localhost: gave up after N s: " + late) +
          CountOf(err, "dtrun: rank 2 on localhost: gave up after N s: " + late) ==
      1);
  CHECK(CountOf(result.err, kBehind) == 1);
}

TEST_CASE("after a rank was killed dtrun reports the last collective of every rank") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/records.json";
  const CommandResult result = JobInVain("killed", {}, {kDtrun, "--flight-record", file}, "60");
  CHECK(result.exit_code == 137);
  CHECK_THAT(
      result.err,
      Catch::StartsWith("dtrun: rank 1 on localhost was killed by SIGKILL\n") &&
          Catch::EndsWith("dtrun:   ranks 0 and 2 were ended because of it\ndtrun: " + kBehind));
  const json records = ReadJson(file);
  REQUIRE(records.size() == 3);
  CHECK(records[0]["operations"].back()["state"] == "started");
  CHECK(records[0]["operations"].back()["kind"] == "all_reduce");
  CHECK(records[1]["operations"].back()["state"] == "done");
  CHECK(records[1]["operations"].back()["sequence"] == 1);
}

TEST_CASE("an interrupt of a hanging job reports the collective in which the job hung") {
  const CommandResult result =
      JobInVain("absent", {}, {"timeout", "--preserve-status", "-s", "INT", "5", kDtrun}, "60");
  CHECK(result.exit_code == 130);
  CHECK(result.err == "dtrun: ended by SIGINT\ndtrun: " + kBehind);
}

TEST_CASE("if the flight folder is missing then the flight record stays in the process") {
  const CommandResult result = Run(Command{
      .argv = {"tests/ranks/in_vain"},
      .environment = {
          {"DTRUN_JOB", "1"},
          {"DTRUN_HOSTS", "h:1"},
          {"DTRUN_FLIGHT_FOLDER", "/nonexistent"},
          {"DTRUN_LOG_LEVEL", "info"}}});
  CHECK(result.exit_code == 0);
  CHECK(
      CountOf(result.err, "the flight record stays in this process: open of /nonexistent/0") == 1);
}

TEST_CASE("on_stall=abort ends a job that ignores errors under dtrun and under plain mpirun") {
  const std::vector<std::string> launcher = GENERATE(
      std::vector<std::string>{kDtrun},
      std::vector<std::string>{"mpirun", "--allow-run-as-root", "--oversubscribe"});
  const CommandResult result = JobInVain(
      "forgotten", {{"DTRUN_ON_STALL", "abort"}, {"DTRUN_ENGINE_THREAD", "on"}}, launcher);
  CHECK(result.exit_code == 76);
  const std::string err = WithoutWaits(result.err, 2);
  CHECK(CountOf(err, "ends the job (on_stall=abort): gave up after N s: " + kSecond) >= 1);
}

}  // namespace
