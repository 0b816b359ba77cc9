// Real processes under dtrun and Open MPI.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;

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
      "engine_thread, timeout_s, log_level\n");
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
