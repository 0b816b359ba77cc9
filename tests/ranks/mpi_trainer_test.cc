// dtrun in programs that use MPI themselves, started by mpirun or by dtrun.

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/subprocess.h"

namespace {

using Catch::Matchers::Contains;
using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;

const std::vector<std::string> kMpirun = {"mpirun", "--allow-run-as-root", "--oversubscribe"};
const std::vector<std::string> kUntaggedDtrun = {"launcher/dtrun", "--tag", "none"};

CommandResult Trainer(
    const std::vector<std::string>& launcher, const std::string& np, const std::string& level,
    const std::string& what,
    const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  std::vector<std::string> argv = launcher;
  argv.insert(argv.end(), {"-np", np, "tests/ranks/mpi_trainer", level, what});
  return Run(Command{.argv = argv, .environment = environment});
}

std::vector<std::string> Sorted(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

using Lines = std::vector<std::string>;

TEST_CASE(
    "Init with MPI_COMM_WORLD works at every thread level of MPI and also before MPI is "
    "initialised") {
  const std::string level = GENERATE("none", "single", "funneled", "serialized", "multiple");
  const auto launcher = GENERATE(kMpirun, kUntaggedDtrun);
  const std::string backend = GENERATE("shm", "mpi");
  const CommandResult result = Trainer(launcher, "2", level, "world", {{"DTRUN_BACKEND", backend}});
  CAPTURE(level, launcher[0], result.err);
  CHECK(result.exit_code == 0);
  CHECK(
      Sorted(result.out) == Lines{
                                "0 is rank 0 of 2 over " + backend + ", sum 80",
                                "1 is rank 1 of 2 over " + backend + ", sum 80"});
}

TEST_CASE("the job has the ranks of the communicator in the communicator's order") {
  const auto launcher = GENERATE(kMpirun, kUntaggedDtrun);
  CAPTURE(launcher[0]);
  CHECK(
      Sorted(Trainer(launcher, "3", "single", "reversed").out) ==
      Lines{
          "0 is rank 2 of 3 over shm, sum 120", "1 is rank 1 of 3 over shm, sum 120",
          "2 is rank 0 of 3 over shm, sum 120"});
  CHECK(
      Sorted(Trainer(launcher, "4", "single", "halves").out) ==
      Lines{
          "0 is rank 0 of 2 over shm, sum 80", "1 is rank 0 of 2 over shm, sum 80",
          "2 is rank 1 of 2 over shm, sum 80", "3 is rank 1 of 2 over shm, sum 80"});
  CHECK(
      Sorted(Trainer(launcher, "2", "single", "self").out) ==
      Lines{"0 is rank 0 of 1 over self, sum 40", "1 is rank 0 of 1 over self, sum 40"});
}

TEST_CASE("an MPI program can call Init again after Shutdown") {
  const CommandResult result = Trainer(kMpirun, "2", "single", "again");
  CHECK(result.exit_code == 0);
  CHECK(Sorted(result.out).size() == 4);
}

TEST_CASE("engine_thread=on is refused below MPI_THREAD_MULTIPLE") {
  // With one OpenMP thread per rank, CPUs remain for dtrun's engine thread.
  const CommandResult result = Trainer(
      kMpirun, "2", "single", "describe",
      {{"DTRUN_BACKEND", "mpi"}, {"OMP_NUM_THREADS", "1"}, {"DTRUN_ENGINE_THREAD", "on"}});
  CHECK(result.exit_code == 3);
  CHECK_THAT(
      result.out,
      Contains("engine_thread=on is not possible: a thread of dtrun's may call MPI only "
               "at MPI_THREAD_MULTIPLE, and MPI is at MPI_THREAD_SINGLE"));
  const CommandResult allowed = Trainer(
      kMpirun, "2", "multiple", "describe",
      {{"DTRUN_BACKEND", "mpi"}, {"DTRUN_ENGINE_THREAD", "on"}});
  CHECK(allowed.exit_code == 0);
  CHECK_THAT(
      allowed.out, Contains("rank 0 of 2, local 0 of 2, host 0 of 1; joined by the caller's MPI "
                            "communicator; backend mpi; ") &&
                       Contains("overlap with the caller's own work: on; ") &&
                       Contains("engine_thread=on"));
}

TEST_CASE("an unusable MPI communicator is refused in one line with the reason") {
  const auto [level, what, text] = GENERATE(
      std::make_tuple("single", "null", "the MPI_Comm is MPI_COMM_NULL; expected a communicator"),
      std::make_tuple(
          "single", "inter",
          "the MPI_Comm is an inter-communicator; expected an intra-communicator"),
      std::make_tuple(
          "none", "self",
          "MPI is not initialised yet; expected MPI_COMM_WORLD, or MPI_Init before Init"),
      std::make_tuple(
          "funneled", "thread",
          "MPI was initialised at MPI_THREAD_FUNNELED; expected Init from the thread that called "
          "MPI_Init"));
  const CommandResult result = Trainer(kMpirun, "2", level, what);
  CAPTURE(level, what, result.err);
  CHECK(Sorted(result.out) == Lines{text, text});
}

TEST_CASE("MPI_Finalize before Shutdown is reported without a crash") {
  const std::string backend = GENERATE("shm", "mpi");
  const CommandResult result =
      Trainer(kMpirun, "2", "single", "finalized", {{"DTRUN_BACKEND", backend}});
  CAPTURE(backend, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("MPI_Finalize was called before Shutdown\n"));
}

TEST_CASE("a forked child of a rank gets an error and does not disturb the job") {
  const std::string backend = GENERATE("shm", "mpi");
  const CommandResult result =
      Trainer(kUntaggedDtrun, "2", "single", "fork", {{"DTRUN_BACKEND", backend}});
  CAPTURE(backend, result.err, result.out);
  CHECK(result.exit_code == 0);
  CHECK_THAT(
      result.out,
      Contains(" was forked from rank 1 after Init; only the process that called Init may use "
               "objects of dtrun"));
  CHECK(std::count(result.out.begin(), result.out.end(), '\n') == 4);
  CHECK(result.err == "");
}

}  // namespace
