// dtrun with other MPIs than the one that it was built with: Debian's MPICH, and those that
// scripts/test --full gets from PyPI.

#include <catch2/catch.hpp>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/python.h"
#include "tests/support/subprocess.h"

namespace {

using Catch::Matchers::Contains;
using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;
using Words = std::vector<std::string>;

struct Mpi {
  std::string name;
  Words start;  // the launcher's words before the program
  Words with;   // gives the program its MPI
  bool mpich;   // has the MPICH ABI

  CommandResult Start(const std::string& ranks, const Words& program, Words variables = {}) const {
    Words argv = start;
    argv.insert(argv.end(), {"-n", ranks, "env"});
    for (const Words& more : {with, variables, program})
      argv.insert(argv.end(), more.begin(), more.end());
    return Run(Command{.argv = argv, .timeout = std::chrono::minutes(5)});
  }
};

// Each line counts as one skipped test.
void SayOnce(const std::string& line) {
  static std::set<std::string> said;
  if (said.insert(line).second) std::puts(line.c_str());
}

// Empty words if the MPI is not installed, which the line says.
Mpi FindInstalled(const std::string& name) {
  if (name == "Debian's MPICH") {
    if (Run({.argv = {"sh", "-c", "command -v mpiexec.hydra"}}).exit_code != 0) {
      SayOnce("SKIPPED: mpiexec.hydra is not installed");
      return {};
    }
    return {name, {"mpiexec.hydra"}, {"LD_PRELOAD=libmpich.so.12"}, true};
  }
  const std::string at = dtrun::testing::FullFolder("mpi/" + name), lib = at + "/lib";
  if (at.empty()) return {};
  if (name == "open_mpi")
    return {
        name,
        {"env", "HOME=" + at, "OPAL_PREFIX=" + at, at + "/bin/mpirun", "--allow-run-as-root",
         "--oversubscribe"},
        {"LD_LIBRARY_PATH=" + lib},
        false};
  return {
      name,
      {at + "/bin/mpiexec.hydra"},
      {"LD_PRELOAD=" + lib + "/libmpi.so.12", "LD_LIBRARY_PATH=" + lib + "/libfabric",
       "FI_PROVIDER_PATH=" + lib + "/libfabric/prov"},
      true};
}

const char* TrainerFor(const Mpi& mpi) {
  return mpi.mpich ? "tests/ops/mpi/mpich_trainer" : "tests/ranks/mpi_trainer";
}

// Empty words also if a program that uses this MPI alone cannot start here.
Mpi Find(const std::string& name) {
  static std::map<std::string, Mpi> known;
  if (known.count(name) != 0) return known[name];
  Mpi mpi = FindInstalled(name);
  if (!mpi.start.empty() && mpi.Start("3", {TrainerFor(mpi), "single", "mpi"}).exit_code != 0) {
    SayOnce("SKIPPED: programs of " + name + " do not start on this machine");
    mpi.start.clear();
  }
  return known[name] = mpi;
}

// The launchers may mix the lines of ranks.
size_t CountOf(const std::string& text, const std::string& words) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; at += words.size()) ++count;
  return count;
}

const Words kMpis = {"Debian's MPICH", "mpich", "intel_mpi", "open_mpi"};

TEST_CASE("a program joins by its communicator, whichever MPI it has") {
  const Mpi mpi = Find(GENERATE(from_range(kMpis)));
  if (mpi.start.empty()) return;
  const std::string trainer = TrainerFor(mpi);
  const std::string level = GENERATE("none", "single", "funneled", "serialized", "multiple");
  const std::string backend = GENERATE("shm", "mpi");
  const CommandResult world =
      mpi.Start("2", {trainer, level, "world"}, {"DTRUN_BACKEND=" + backend});
  CAPTURE(mpi.name, level, backend, world.err);
  CHECK(world.exit_code == 0);
  CHECK(CountOf(world.out, "0 is rank 0 of 2 over " + backend + ", sum 80") == 1);
  CHECK(CountOf(world.out, "1 is rank 1 of 2 over " + backend + ", sum 80") == 1);
}

TEST_CASE("communicators of every MPI give the order of the ranks, and bad ones are refused") {
  const Mpi mpi = Find(GENERATE(from_range(kMpis)));
  if (mpi.start.empty()) return;
  const std::string trainer = TrainerFor(mpi);
  CAPTURE(mpi.name);
  CHECK_THAT(
      mpi.Start("3", {trainer, "single", "reversed"}).out,
      Contains("0 is rank 2 of 3 over shm, sum 120") &&
          Contains("1 is rank 1 of 3 over shm, sum 120") &&
          Contains("2 is rank 0 of 3 over shm, sum 120"));
  CHECK(CountOf(mpi.Start("2", {trainer, "single", "again"}).out, "over shm, sum 80") == 4);
  CHECK(
      CountOf(
          mpi.Start("2", {trainer, "single", "null"}).out,
          "the MPI_Comm is MPI_COMM_NULL; expected a communicator") == 2);
  CHECK_THAT(
      mpi.Start("2", {trainer, "single", "finalized"}, {"DTRUN_BACKEND=mpi"}).out,
      Contains("MPI_Finalize was called before Shutdown\n"));
}

TEST_CASE("a program that another MPI's launcher has started is refused") {
  const Mpi mpich = Find(kMpis.front());
  if (mpich.start.empty()) return;
  const std::string other =
      ", but the program's own MPI is of another kind, so MPI_COMM_WORLD has one rank; start the "
      "program with the launcher of its MPI";
  const CommandResult hydra =
      Run({.argv = {"mpiexec.hydra", "-n", "2", "tests/ranks/mpi_trainer", "single", "world"}});
  CAPTURE(hydra.err);
  CHECK(
      CountOf(hydra.out, "started as one of several by MPICH's or Intel MPI's launcher" + other) ==
      2);
  const CommandResult result = Run(
      {.argv = {
           "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "env", mpich.with[0],
           "tests/ops/mpi/mpich_trainer", "single", "world"}});
  CAPTURE(result.err);
  CHECK(CountOf(result.out, "started as one of several by Open MPI's launcher" + other) == 2);
}

TEST_CASE("every MPI carries every operation with the right result") {
  const Mpi mpi = Find(GENERATE(from_range(kMpis)));
  if (mpi.start.empty()) return;
  const std::string ranks = GENERATE("2", "3");
  const std::string scenario = GENERATE("all_forms", "arithmetics", "many", "out_of_step");
  Words program = {"tests/ops/mpi/mpi_ranks", scenario};
  if (mpi.mpich) program.push_back("MPICH");
  const CommandResult result = mpi.Start(ranks, program);
  CAPTURE(mpi.name, scenario, ranks, result.err);
  CHECK_THAT(result.out, Catch::Matchers::EndsWith(" checks, 0 wrong\n"));
  CHECK(result.exit_code == 0);
}

// The line of rank 0 at the end of a training.
std::string ResultIn(const std::string& output) {
  const size_t at = output.find("Test: loss");
  if (at == std::string::npos) return "no result in:\n" + output;
  return output.substr(at, output.find('\n', at) - at);
}

TEST_CASE("a program without MPI computes the same under the launcher of every MPI, and of none") {
  const Mpi mpi = Find(GENERATE(from_range(kMpis)));
  if (mpi.start.empty()) return;
  CAPTURE(mpi.name);
  const std::string backend = GENERATE("shm", "mpi");
  CHECK_THAT(
      mpi.Start("2", {"tests/ranks/conformance"}, {"DTRUN_BACKEND=" + backend}).out,
      Contains(backend + ": many checks, 0 wrong"));
  const Words train = {"models/cnn_fmnist", "--max-steps", "5", "--deterministic"};
  static const std::string alone = [&train] {
    Words argv = {"launcher/dtrun", "--launcher", "local", "--tag", "none", "-np", "2"};
    argv.insert(argv.end(), train.begin(), train.end());
    return ResultIn(Run(Command{.argv = argv, .timeout = std::chrono::minutes(5)}).out);
  }();
  const CommandResult result = mpi.Start("2", train, {"DTRUN_BACKEND=" + backend});
  CAPTURE(result.err);
  CHECK_THAT(alone, Contains("on all 2 ranks"));
  CHECK(ResultIn(result.out) == alone);
}

}  // namespace
