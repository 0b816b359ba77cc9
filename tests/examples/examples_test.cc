#include <catch2/catch.hpp>
#include <string>

#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;
using dtrun::testing::TemporaryFolder;

// The output of `program`, without a launcher or as a job of `ranks`.
std::string Alone(const std::string& program) { return Run(Command{.argv = {program}}).out; }

std::string AsJob(int ranks, const std::string& program) {
  const CommandResult result = Run(
      Command{.argv = {"launcher/dtrun", "--tag", "none", "-np", std::to_string(ranks), program}});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  return result.out;
}

TEST_CASE("the example of the README runs alone and as a job") {
  CHECK(Alone("examples/sgd") == "1 ranks agree on 0.000\n");
  CHECK(AsJob(4, "examples/sgd") == "4 ranks agree on 1.500\n");
}

TEST_CASE("the C example finds the same line with any number of ranks") {
  const std::string line = " ranks agree on y = 3.00 x -2.00\n";
  CHECK(Alone("examples/sgd_c99") == "1" + line);
  CHECK(AsJob(2, "examples/sgd_c99") == "2" + line);
  CHECK(AsJob(3, "examples/sgd_c99") == "3" + line);
}

TEST_CASE("the checkpoint example resumes with another number of ranks") {
  const TemporaryFolder folder;
  const auto train = [&](const std::string& ranks, const std::string& steps) {
    const CommandResult result = Run(Command{
        .argv = {
            "launcher/dtrun", "--tag", "none", "-np", ranks, "examples/checkpoint",
            folder.path() + "/saved", steps}});
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
    return result.out;
  };
  CHECK(train("2", "35") == "begins after step 0\n");
  CHECK(train("1", "45") == "begins after step 30\n");
  CHECK(train("2", "0") == "begins after step 40\n");
}

TEST_CASE("the example of the named queue runs alone and as a job") {
  CHECK(
      Alone("examples/named_queue") == "1 ranks: weight 0, bias 1, 1 rows, the last from rank 0\n");
  CHECK(
      AsJob(3, "examples/named_queue") ==
      "3 ranks: weight 3, bias 3, 6 rows, the last from rank 2\n");
}

TEST_CASE("the MPI example trains alone and under dtrun and under plain mpirun") {
  const std::string line = " ranks, all equal\n";
  CHECK(Alone("examples/mpi_sgd") == "y = 3.00x + 2.00 on 1" + line);
  CHECK(AsJob(2, "examples/mpi_sgd") == "y = 3.00x + 2.00 on 2" + line);
  const CommandResult plain = Run(Command{
      .argv = {
          "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3", "examples/mpi_sgd"}});
  CHECK(plain.out == "y = 3.00x + 2.00 on 3" + line);
}

}  // namespace
