// Ranks without MPI: started by dtrun, by another launcher or by hand.

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace {

using Catch::Contains;
using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;
using dtrun::testing::Subprocess;
using Environment = std::vector<std::pair<std::string, std::string>>;
using Words = std::vector<std::string>;

CommandResult Local(const std::string& np, const Words& program, const Environment& more = {}) {
  Words argv = {"launcher/dtrun", "--launcher", "local", "--tag", "none", "-np", np};
  argv.insert(argv.end(), program.begin(), program.end());
  return Run(Command{.argv = argv, .environment = more, .timeout = std::chrono::seconds(240)});
}

TEST_CASE("ranks started by the local launcher conform") {
  const std::string np = GENERATE("2", "4");
  const CommandResult result =
      Local(np, {"tests/ranks/conformance"}, {{"DTRUN_BACKEND", "shm"}, {"DTRUN_TIMEOUT_S", "30"}});
  CHECK(result.err == "");
  CHECK(result.out == "shm: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("the local launcher runs one rank on the self backend and refuses the mpi backend") {
  CHECK(Local("1", {"tests/ranks/conformance"}).out == "self: many checks, 0 wrong\n");
  const CommandResult result = Local("2", {"tests/ranks/in_vain", ""}, {{"DTRUN_BACKEND", "mpi"}});
  CHECK_THAT(result.err, Contains("mpi: rank 0: no MPI launcher has started this process"));
}

TEST_CASE("without mpirun a rank that is killed or stalls or exits early ends the job") {
  CHECK_THAT(
      Local("3", {"tests/ranks/in_vain", "killed"}, {{"DTRUN_TIMEOUT_S", "60"}}).err,
      Catch::StartsWith("dtrun: rank 1 on localhost was killed by SIGKILL\n") &&
          Catch::EndsWith(
              "dtrun:   ranks 0 and 2 were ended because of it\n"
              "dtrun: rank 1 is 1 collective behind on world: it last finished #1, barrier; "
              "ranks 0 and 2 wait in #2, all_reduce (f32, 4 elements, sum)\n"));
  const Environment soon = {{"DTRUN_TIMEOUT_S", "2"}, {"DTRUN_STALL_WARNING_S", "1"}};
  const CommandResult absent = Local("3", {"tests/ranks/in_vain", "absent"}, soon);
  CHECK(absent.exit_code == 76);
  CHECK_THAT(
      absent.err, Contains(" waits for rank 1 to call it; rank 1 last finished collective #1"));
  const CommandResult left = Local("2", {"tests/ranks/misbehave", "leave"});
  CHECK(left.exit_code == 76);
  CHECK_THAT(left.err, Contains("dtrun: rank 1: error: left without Shutdown()"));
  const CommandResult refused = Local("2", {"tests/ranks/misbehave", "refuse"});
  CHECK(refused.exit_code == 66);
  CHECK(refused.err == "misbehave: refused\n");
}

TEST_CASE("on_stall=abort ends a job without MPI") {
  const CommandResult result = Local(
      "3", {"tests/ranks/in_vain", "forgotten"},
      {{"DTRUN_TIMEOUT_S", "2"}, {"DTRUN_ON_STALL", "abort"}, {"DTRUN_ENGINE_THREAD", "on"}});
  CHECK(result.exit_code == 76);
  CHECK_THAT(
      dtrun::testing::WithoutWaits(result.err, 2),
      Contains("error: ends the job (on_stall=abort): gave up after N s: "));
}

TEST_CASE("a rank that never calls Init is named by the ranks that wait in Init") {
  const CommandResult result = Local(
      "3", {"sh", "-c", "[ $RANK = 1 ] && exec sleep 60; exec tests/ranks/misbehave kind"},
      {{"DTRUN_TIMEOUT_S", "2"}, {"DTRUN_STALL_WARNING_S", "1"}});
  CHECK_THAT(
      result.err, Contains("dtrun: warning: ranks 0 and 2 have been waiting in Init for 1 s; rank "
                           "1 on localhost has not called Init (pid "));
  CHECK_THAT(
      result.err, Contains("dtrun: rank 1 on localhost has not called Init (pid ") &&
                      Contains("); ranks 0 and 2 have been waiting in Init for 2 s "
                               "(--stall-timeout)\n"));
  CHECK(result.exit_code == 76);
}

// Script: rank 0 is stopped while it listens for the other ranks in Init. The other ranks call Init
// after that.
constexpr char kStopsInInit[] = R"(
if [ $RANK = 0 ]; then
  tests/ranks/misbehave kind & process=$!
  until for socket in $(ls -l /proc/$process/fd | sed -n 's/.*socket:\[\([0-9]*\)\]/\1/p'); do
    grep " 00010000 0001 01 $socket @dtrun.ranks" /proc/net/unix
  done | grep -q .; do sleep 0.02; done
  kill -STOP $process
  touch $STOPPED
  wait
fi
until [ -e $STOPPED ]; do sleep 0.02; done
exec tests/ranks/misbehave kind)";

TEST_CASE("dtrun names a rank that is stopped by a signal in Init") {
  const dtrun::testing::TemporaryFolder folder;
  const CommandResult result = Local(
      "3", {"sh", "-c", kStopsInInit},
      {{"DTRUN_TIMEOUT_S", "2"},
       {"DTRUN_STALL_WARNING_S", "1"},
       {"STOPPED", folder.path() + "/stopped"}});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 76);
  CHECK_THAT(
      result.err,
      Contains("dtrun: warning: ranks 0-2 have been waiting in Init for 1 s\n") &&
          Contains("dtrun: rank 0 on localhost has been stopped by a signal for 2 s (pid "));
  CHECK_THAT(result.out + result.err, !Contains("rank -1"));
}

TEST_CASE("without MPI options that differ between ranks are named with both values") {
  const CommandResult result = Local(
      "2",
      {"sh", "-c", "[ $RANK = 1 ] && export DTRUN_BUCKET_BYTES=7; exec tests/ranks/misbehave"});
  CHECK_THAT(result.out, Contains("rank 0 has bucket_bytes=auto, rank 1 has bucket_bytes=7"));
}

TEST_CASE("Init with an MPI communicator is refused under the local launcher") {
  const CommandResult result =
      Local("2", {"tests/ranks/mpi_trainer", GENERATE("none", "multiple")});
  CHECK(result.exit_code == 3);
  CHECK_THAT(
      result.out, Contains("of 2 (joined by dtrun, on this host), but no MPI launcher has started "
                           "it, so MPI_COMM_WORLD has one rank; start the program with dtrun "
                           "--launcher mpirun, or call Init without a communicator\n"));
}

// ---- By hand ------------------------------------------------------------------------------------

// A port that no other run of this test uses at the same time.
std::string NewPort() {
  static int port = 20'000 + static_cast<int>(getpid() % 20'000);
  return std::to_string(++port);
}

Environment ByRank(int rank, int size, const std::string& port) {
  return {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(size)},
      {"MASTER_ADDR", "localhost"},
      {"MASTER_PORT", port},
      {"DTRUN_TIMEOUT_S", "30"}};
}

// Runs one process per environment, all at the same time, and returns their results.
std::vector<CommandResult> Together(
    const Words& program, const std::vector<Environment>& environments) {
  std::vector<std::unique_ptr<Subprocess>> processes;
  for (const Environment& environment : environments)
    processes.push_back(
        std::make_unique<Subprocess>(Command{.argv = program, .environment = environment}));
  std::vector<CommandResult> results;
  for (const auto& process : processes) results.push_back(process->Wait());
  return results;
}

TEST_CASE("processes started by hand with RANK and WORLD_SIZE form a job") {
  const std::string port = NewPort();
  const auto results = Together(
      {"tests/ranks/conformance"}, {ByRank(1, 3, port), ByRank(2, 3, port), ByRank(0, 3, port)});
  CHECK(results[2].out == "shm: many checks, 0 wrong\n");
  for (const CommandResult& result : results) {
    CHECK(result.err == "");
    CHECK(result.exit_code == 0);
  }
}

TEST_CASE("processes with a TF_CONFIG on one host form a job") {
  const std::string port = NewPort();
  const auto worker = [&](int index) {
    return Environment{
        {"TF_CONFIG", "{\"cluster\": {\"worker\": [\"localhost:" + port +
                          "\", \"127.0.0.1:9\"]}, \"task\": {\"type\": \"worker\", \"index\": " +
                          std::to_string(index) + "}}"}};
  };
  const auto results = Together({"tests/ranks/conformance"}, {worker(0), worker(1)});
  CHECK(results[0].out == "shm: many checks, 0 wrong\n");
  CHECK(results[1].exit_code == 0);
}

TEST_CASE("a job can reuse the port of an earlier job") {
  const std::string port = NewPort();
  for (int job = 0; job < 3; ++job) {
    const auto results =
        Together({"tests/ranks/in_vain"}, {ByRank(0, 2, port), ByRank(1, 2, port)});
    CHECK(results[0].exit_code == 0);
    CHECK(results[1].exit_code == 0);
  }
}

TEST_CASE("Init names a rank that two processes claim and ranks that do not come") {
  const std::string port = NewPort();
  const auto results =
      Together({"tests/ranks/misbehave", "kind"}, {ByRank(1, 3, port), ByRank(1, 3, port)});
  for (const CommandResult& result : results) {
    CHECK_THAT(result.out + result.err, Contains("two processes are rank 1: "));
    CHECK(result.exit_code != 0);
  }
  Environment hasty = ByRank(1, 3, NewPort());
  hasty.back().second = "1";
  CHECK_THAT(
      Together({"tests/ranks/misbehave", "kind"}, {hasty})[0].out,
      Contains("waited 1 s for ranks 0 and 2 of 3 to call Init"));
}

TEST_CASE("a process that cannot join its job fails and names the command to type") {
  const auto said = [](const Environment& environment) {
    const CommandResult result =
        Run(Command{.argv = {"tests/ranks/misbehave", "a b"}, .environment = environment});
    CHECK(result.exit_code == 2);
    return result.out;
  };
  Environment far = ByRank(0, 2, "29500");
  far[2].second = "192.0.2.1";
  CHECK_THAT(
      said(far), Contains("MASTER_ADDR is 192.0.2.1, which is not this host") &&
                     Contains("type instead: dtrun -np 2 -H 192.0.2.1:1,") &&
                     Contains(":1 tests/ranks/misbehave 'a b'   (set DTRUN_ALONE=1"));
  CHECK_THAT(
      said({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}),
      Contains("not started by srun") && Contains("dtrun tests/ranks/misbehave 'a b'"));
  CHECK_THAT(
      said({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), Contains("MPICH's or Intel MPI's launcher"));
  CHECK_THAT(said({{"TF_CONFIG", "{"}}), Contains("TF_CONFIG: found '{', expected a JSON object"));
  far.emplace_back("DTRUN_ALONE", "1");
  CHECK(
      Run(Command{.argv = {"tests/ranks/conformance"}, .environment = far}).out ==
      "self: many checks, 0 wrong\n");
}

TEST_CASE("ranks that MPICH's mpiexec starts meet on this host through its process manager") {
  if (Run({.argv = {"sh", "-c", "command -v mpiexec.hydra"}}).exit_code != 0) {
    std::puts("SKIPPED: mpiexec.hydra is not installed");
    return;
  }
  const auto mpiexec = [](const std::string& ranks, const Words& program) {
    Words argv = {"mpiexec.hydra", "-n", ranks};
    argv.insert(argv.end(), program.begin(), program.end());
    return Run({.argv = argv, .timeout = std::chrono::seconds(120)});
  };
  const CommandResult result = mpiexec("3", {"tests/ranks/conformance"});
  CHECK(result.err == "");
  CHECK(result.out == "shm: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
  // The process manager serves one process of each rank, and once.
  const CommandResult twice = mpiexec(
      "2", {"sh", "-c", "tests/ranks/summing >/dev/null && exec tests/ranks/misbehave refuse"});
  CHECK_THAT(
      twice.out + twice.err,
      Contains("the launcher that started this process (PMI_FD)") && Contains("set MASTER_ADDR"));
}

TEST_CASE("Init with an MPI communicator is refused in a process that was started by hand") {
  const CommandResult result = Run(Command{
      .argv = {"tests/ranks/mpi_trainer", "multiple"}, .environment = ByRank(0, 2, NewPort())});
  CHECK(result.exit_code == 3);
  CHECK_THAT(result.out, Contains("but no MPI launcher has started it"));
}

}  // namespace
