// Real processes under dtrun and Open MPI.

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;
using dtrun::testing::TemporaryFolder;
using nlohmann::json;

constexpr char kDtrun[] = "launcher/dtrun";

CommandResult Job(
    const std::string& np, const std::vector<std::string>& program,
    const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  std::vector<std::string> argv = {kDtrun, "-np", np};
  argv.insert(argv.end(), program.begin(), program.end());
  return Run(Command{.argv = argv, .environment = environment});
}

TEST_CASE("a program that nobody launched is a world of one") {
  const CommandResult result = Run(Command{.argv = {"tests/ranks/conformance"}});
  CHECK(result.out == "self: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("plain mpirun starts a job too") {
  const CommandResult result = Run(Command{
      .argv = {
          "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2",
          "tests/ranks/conformance"}});
  CHECK(result.out == "shm: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("ranks that call different collectives learn who called what, and end in good order") {
  const std::string backend = GENERATE("shm", "mpi");
  const CommandResult result =
      Job("3", {"tests/ranks/misbehave", "mismatch"}, {{"DTRUN_BACKEND", backend}});
  CHECK(
      result.out ==
      "2: the ranks disagree on collective #1: ranks 1 and 2 called all_reduce (f32, 4 elements, "
      "sum); rank 0 called "
      "barrier\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("an option that does not exist is named") {
  const CommandResult result = Run(Command{.argv = {"tests/ranks/misbehave", "option"}});
  CHECK(
      result.out ==
      "1: unknown option 'bucket_mb'; the options are bucket_bytes, backend, wire_dtype, "
      "engine_thread, stall_warning_s, timeout_s, on_stall, log_level\n");
}

TEST_CASE("options that differ between ranks are named with both values") {
  // A variable that is set for one rank only, as it would be on one host only.
  const CommandResult result = Job(
      "2",
      {"sh", "-c",
       "[ $OMPI_COMM_WORLD_RANK = 1 ] && export DTRUN_TIMEOUT_S=7; exec tests/ranks/misbehave"});
  CHECK(
      result.out.find("2: the ranks were started differently: rank 0 has timeout_s=600, rank 1 has "
                      "timeout_s=7 (is a "
                      "DTRUN_ variable set on one host only?)\n") != std::string::npos);
  CHECK(result.exit_code == 2);
}

TEST_CASE("a rank that leaves without Shutdown is named") {
  const CommandResult result = Job("2", {"tests/ranks/misbehave", "leave"});
  CHECK(result.err.find("dtrun: rank 1: error: left without Shutdown()") != std::string::npos);
  CHECK(result.exit_code != 0);
}

// Rank 1 stops after collective #1.
CommandResult JobInVain(
    const std::string& what, std::vector<std::pair<std::string, std::string>> environment = {},
    const std::vector<std::string>& launcher = {kDtrun}, const std::string& timeout_s = "2") {
  environment.insert(
      environment.end(),
      {{"DTRUN_TIMEOUT_S", timeout_s}, {"DTRUN_STALL_WARNING_S", timeout_s == "2" ? "1" : "60"}});
  std::vector<std::string> argv = launcher;
  argv.insert(argv.end(), {"-np", "3", "tests/ranks/misbehave", what});
  return Run(Command{.argv = argv, .environment = environment});
}

const std::string kSecond = "collective #2, all_reduce (f32, 4 elements, sum)";

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST_CASE("a rank that never comes is named, with what it did last, and the job ends with 76") {
  const std::string backend = GENERATE("shm", "mpi");
  const std::string what = GENERATE("absent", "uncaught");
  const CommandResult result = JobInVain(what, {{"DTRUN_BACKEND", backend}});
  CAPTURE(backend, what, result.err);
  CHECK(result.exit_code == 76);
  const std::string late = kSecond +
                           ", waits for rank 1 to call it; rank 1 last finished "
                           "collective #1, barrier, ";
  CHECK(Count(result.err, "warning: waiting for 1 s: " + late) == 2);
  CHECK(Count(result.err, "warning: ") == 2);
  CHECK(
      Count(result.err, "dtrun: rank 0 on localhost: gave up after 2 s: " + late) +
          Count(result.err, "dtrun: rank 2 on localhost: gave up after 2 s: " + late) ==
      1);
  CHECK(Count(result.err, "; rank 1 last finished collective #1, barrier\n") == 1);
}

TEST_CASE("of a job whose rank was killed, dtrun says what every rank was doing") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/records.json";
  const CommandResult result = JobInVain("killed", {}, {kDtrun, "--flight-record", file}, "60");
  CHECK(result.exit_code == 137);
  CHECK_THAT(
      result.err, Catch::EndsWith(
                      "dtrun: rank 1 on localhost was killed by SIGKILL (often: out of memory)\n"
                      "dtrun: ranks 0 and 2 waited in " +
                      kSecond + "; rank 1 last finished collective #1, barrier\n"));
  const json records = json::parse(std::ifstream(file));
  REQUIRE(records.size() == 3);
  CHECK(records[0]["operations"].back()["state"] == "started");
  CHECK(records[0]["operations"].back()["kind"] == "all_reduce");
  CHECK(records[1]["operations"].back()["state"] == "done");
  CHECK(records[1]["operations"].back()["sequence"] == 1);
}

TEST_CASE("whoever interrupts a job that hangs learns what it hung in") {
  const CommandResult result =
      JobInVain("absent", {}, {"timeout", "--preserve-status", "-s", "INT", "5", kDtrun}, "60");
  CHECK(result.exit_code == 130);
  CHECK(
      result.err == "dtrun: ended by SIGINT\ndtrun: ranks 0 and 2 waited in " + kSecond +
                        "; rank 1 last finished collective #1, barrier\n");
}

TEST_CASE("where the job's folder is not there, a rank keeps its record to itself") {
  const CommandResult result = Run(Command{
      .argv = {"tests/ranks/misbehave"},
      .environment = {
          {"DTRUN_JOB", "1"},
          {"DTRUN_HOSTS", "h:1"},
          {"DTRUN_FLIGHT_FOLDER", "/nonexistent"},
          {"DTRUN_LOG_LEVEL", "info"}}});
  CHECK(result.exit_code == 0);
  CHECK(Count(result.err, "the flight record stays in this process: open of /nonexistent/0") == 1);
}

TEST_CASE("on_stall=abort ends a job whose program looks at no error, and one without dtrun") {
  const std::vector<std::string> launcher = GENERATE(
      std::vector<std::string>{kDtrun},
      std::vector<std::string>{"mpirun", "--allow-run-as-root", "--oversubscribe"});
  const CommandResult result = JobInVain(
      "forgotten", {{"DTRUN_ON_STALL", "abort"}, {"DTRUN_ENGINE_THREAD", "on"}}, launcher);
  CHECK(result.exit_code == 76);
  CHECK(Count(result.err, "ends the job (on_stall=abort): gave up after 2 s: " + kSecond) >= 1);
}

TEST_CASE("ranks that refuse together, in good order, have the only word") {
  const CommandResult result = Job("2", {"tests/ranks/misbehave", "refuse"});
  CHECK(result.err == "misbehave: refused\n");
  CHECK(result.exit_code == 66);
}

TEST_CASE("the example of the README runs alone and as a job") {
  CHECK(Run(Command{.argv = {"examples/sgd"}}).out == "1 ranks agree on 0.000\n");
  CHECK(Job("4", {"examples/sgd"}).out == "4 ranks agree on 1.500\n");
}

}  // namespace
