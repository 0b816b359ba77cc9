// Processes under dtrun and Open MPI.

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/ranks/dtrun_job.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::ParseJson;
using dtrun::testing::ReadJson;
using dtrun::testing::Run;
using dtrun::testing::RunJob;
using dtrun::testing::TemporaryFolder;
using dtrun::testing::WithoutWaits;

CommandResult Job(
    const std::string& np, const std::vector<std::string>& program,
    const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  std::vector<std::string> words = {"-np", np};
  words.insert(words.end(), program.begin(), program.end());
  return RunJob(words, environment);
}

TEST_CASE("the self backend conforms in a process without a launcher") {
  const CommandResult result = Run(Command{.argv = {"tests/ranks/conformance"}});
  CHECK(result.out == "self: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("ranks started by plain mpirun conform") {
  const CommandResult result = Run(Command{
      .argv = {
          "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2",
          "tests/ranks/conformance"}});
  CHECK(result.out == "shm: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

// A wrong call of tests/ranks/misbehave.cc, and the errors of ranks 0 and 1: code and text.
struct Mistake {
  std::string name, rank_0, rank_1;
};

// Runs a job in which every rank makes the mistake. Returns the output lines, sorted.
std::vector<std::string> Told(
    const Mistake& mistake, const std::string& backend, const std::string& np, int* exit_code) {
  const CommandResult result =
      Job(np, {"tests/ranks/misbehave", mistake.name},
          {{"DTRUN_BACKEND", backend}, {"DTRUN_TIMEOUT_S", "20"}});
  *exit_code = result.exit_code;
  std::vector<std::string> lines;
  std::istringstream out(result.out);
  for (std::string line; std::getline(out, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

void CheckTold(const Mistake& mistake, const std::string& backend) {
  INFO(mistake.name << " on " << backend);
  int exit_code = 1;
  const std::vector<std::string> expected = {"0: " + mistake.rank_0, "1: " + mistake.rank_1};
  CHECK(Told(mistake, backend, "2", &exit_code) == expected);
  CHECK(exit_code == 0);
}

TEST_CASE("a rank refuses a bad argument and can continue") {
  const auto both = [](const std::string& name, const std::string& text) {
    CheckTold({name, "1: " + text, "1: " + text}, "auto");
  };
  both("null", "all_reduce: the input is null but has 4 elements");
  both("null_output", "all_gather: the output is null but has 2 elements");
  both("no_dtype", "all_reduce: the input has dtype 77, which does not exist");
  both("no_op", "all_reduce: reduce op 9 does not exist");
  both("no_root", "broadcast: root is 2; expected a rank from 0 to 1");
  both("no_peer", "send: the peer is -1; expected a rank from 0 to 1");
  both(
      "overlap",
      "all_reduce: the input and the output overlap; expected the same memory or separate memory");
  both(
      "short_table",
      "all_gather: the receive counts: found 1 counts; expected one for each of 2 ranks");
  both("splits", "all_to_all: the input has 4 elements; expected 5 (the sum of the send counts)");
  both("overflow", "all_to_all: the sum of the send counts overflows");
  both("twice_listed", "subset: rank 0 is listed twice; expected different ranks from 0 to 1");
  CheckTold(
      {"to_itself", "1: send: the peer is 0, this rank itself; expected another one",
       "1: send: the peer is 1, this rank itself; expected another one"},
      "auto");
}

TEST_CASE("after a mismatch every rank reports the calls of all ranks and can continue") {
  const std::string backend = GENERATE("shm", "mpi", "hierarchical");
  const auto both = [&](const std::string& name, const std::string& text) {
    CheckTold({name, "2: " + text, "2: " + text}, backend);
  };
  const std::string disagree = "the ranks disagree on collective #1: ";
  const std::string sum = "called all_reduce (f32, 4 elements, sum)";
  both("kind", disagree + "rank 1 " + sum + "; rank 0 called barrier");
  both("count", disagree + "rank 0 " + sum + "; rank 1 called all_reduce (f32, 5 elements, sum)");
  both("dtype", disagree + "rank 0 " + sum + "; rank 1 called all_reduce (i32, 4 elements, sum)");
  both("op", disagree + "rank 1 called all_reduce (f32, 4 elements, max); rank 0 " + sum);
  both(
      "root",
      disagree +
          "rank 0 called broadcast (f32, 4 elements, root 0); rank 1 called broadcast (f32, 4 "
          "elements, root 1)");
  both(
      "scale",
      disagree +
          "rank 0 called all_reduce (f32, 4 elements, sum, scaled by 0.25 before); rank 1 called "
          "all_reduce (f32, 4 elements, sum, scaled by 0.5 before)");
  both(
      "shares",
      disagree +
          "rank 1 called reduce_scatter (f32, 4 elements, sum) with shares of 2, 2; rank 0 called "
          "reduce_scatter (f32, 4 elements, sum) with shares of 3, 1");
  both(
      "receive_counts",
      disagree + "all_to_all: rank 1 sends 2 elements to rank 0, which expects 4");
  both("gather", disagree + "gather: rank 1 sends 3 elements to rank 0, which expects 2");
  both(
      "members",
      "the ranks disagree on the members of a subset: rank 0 listed rank 0; rank 1 listed rank 1");
}

TEST_CASE("a message of another size than expected is an error on both sides") {
  const std::string backend = GENERATE("shm", "mpi", "hierarchical");
  int exit_code = 1;
  const auto lines = Told({"message", "", ""}, backend, "2", &exit_code);
  CHECK(exit_code == 0);
  REQUIRE(lines.size() == 2);
  for (const std::string& line : lines) {
    CHECK(
        line.substr(line.find("message #1")) ==
        "message #1: rank 0 sends 4 elements of f32, rank 1 expects 3 elements of f32");
  }
}

TEST_CASE("a mismatch error names ranks with equal calls together") {
  const std::string backend = GENERATE("shm", "mpi", "hierarchical");
  int exit_code = 1;
  const std::string text =
      ": 2: the ranks disagree on collective #1: ranks 1 and 2 called all_reduce (f32, 4 elements, "
      "sum); rank 0 called barrier";
  CHECK(
      Told({"kind", "", ""}, backend, "3", &exit_code) ==
      std::vector<std::string>{"0" + text, "1" + text, "2" + text});
  CHECK(exit_code == 0);
}

TEST_CASE("ranks that give up waiting name the rank that did not come") {
  const std::string backend = GENERATE("shm", "mpi", "hierarchical");
  const auto start = std::chrono::steady_clock::now();
  const CommandResult never =
      Job("3", {"tests/ranks/misbehave", "never"},
          {{"DTRUN_BACKEND", backend}, {"DTRUN_TIMEOUT_S", "4"}});
  const std::string text =
      ": 4: gave up after N s: collective #1, barrier, waits for rank 1 to call it";
  // The first rank that gives up may end the job before the other rank prints.
  const std::string out = WithoutWaits(never.out, 4);
  CHECK((out.find("0" + text) == 0 || out.find("2" + text) == 0));
  CHECK(never.exit_code == 76);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));  // rank 1 sleeps 30

  const CommandResult message =
      Job("2", {"tests/ranks/misbehave", "no_receive"},
          {{"DTRUN_BACKEND", backend}, {"DTRUN_TIMEOUT_S", "4"}});
  CHECK(
      WithoutWaits(message.out, 4)
          .find("0: 4: gave up after N s: message #1, send (f32, 10000000 elements, to rank 1)") ==
      0);
}

TEST_CASE("an unknown option is refused with the list of options") {
  const CommandResult result = Run(Command{.argv = {"tests/ranks/misbehave", "option"}});
  CHECK(
      result.out ==
      "1: unknown option 'bucket_mb'; the options are bucket_bytes, backend, device_backend, "
      "gpu_memory_bytes, transport, peer_timeout_s, tcp_ports, wire_dtype, reduce_isa, "
      "engine_thread, timeout_s, "
      "stall_warning_s, on_stall, autotune, autotune_log, autotune_cache, autotune_wire, "
      "log_level\n");
}

TEST_CASE("options that differ between ranks are named with both values") {
  // The variable is set for one rank only, as if it were set on one host only.
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

TEST_CASE("a rank that exits without Shutdown is named") {
  const CommandResult result = Job("2", {"tests/ranks/misbehave", "leave"});
  CHECK(result.err.find("dtrun: rank 1: error: left without Shutdown()") != std::string::npos);
  CHECK(result.exit_code == 76);
}

TEST_CASE("an uncaught error is the last output of its rank in the report") {
  const dtrun::testing::TemporaryFolder folder;
  const std::string file = folder.path() + "/report.json";
  const CommandResult result =
      RunJob({"-np", "2", "--report-json", file, "tests/ranks/misbehave", "count", "uncaught"});
  CAPTURE(result.err);
  CHECK(result.err.find("Process received signal") == std::string::npos);
  const auto culprit = ReadJson(file)["culprit"];
  CHECK(culprit["signal_name"] == "SIGABRT");
  const std::vector<std::string> lines = culprit["last_lines"];
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "terminate called after throwing an instance of 'dtrun::Error'");
  CHECK(lines[1].starts_with("  what():  the ranks disagree on collective #1: rank 0 called "));
}

TEST_CASE("the user's setting of Open MPI's signal handlers is kept") {
  const CommandResult result = RunJob(
      {"-np", "2", "tests/ranks/misbehave", "count", "uncaught"}, {{"OMPI_MCA_opal_signal", "6"}});
  CHECK(result.err.find("Process received signal") != std::string::npos);
}

TEST_CASE("dtrun adds no message if all ranks call Shutdown and then exit with an error") {
  const CommandResult result = Job("2", {"tests/ranks/misbehave", "refuse"});
  CHECK(result.err == "misbehave: refused\n");
  CHECK(result.exit_code == 66);
}

TEST_CASE("ranks in Init give up on a rank that exited or stopped or never calls Init") {
  const std::string launcher = GENERATE("mpirun", "local");
  const auto [why, what, signal] = GENERATE(
      std::tuple<std::string, std::string, bool>(
          "exit 0",
          "dtrun: rank 1 on localhost exited with code 0 while rank 0 waits for it in Init\n",
          false),
      std::tuple<std::string, std::string, bool>(
          "kill -STOP $$", "dtrun: rank 1 on localhost has been stopped by a signal for ", true),
      std::tuple<std::string, std::string, bool>(
          "sleep 60", "dtrun: rank 1 on localhost has not called Init (pid ", true));
  CAPTURE(launcher, why);
  const CommandResult result = RunJob(
      {"--launcher", launcher, "-np", "2", "--stall-warning", "1", "--stall-timeout", "2", "sh",
       "-c", "[ $RANK = 1 ] && " + why + "; exec tests/ranks/summing 1"});
  CHECK(result.exit_code == 76);
  // Open MPI ends the job itself if rank 0 is in MPI_Init by the time rank 1 exits.
  CHECK_THAT(
      result.err,
      Catch::Contains(what) ||
          Catch::Contains("rank 1 on localhost exited with code 0 without MPI_Finalize"));
  const bool warned =
      result.err.find("warning: rank 0 has been waiting in Init for 1 s; rank 1 ") !=
      std::string::npos;
  CHECK(warned == signal);
}

TEST_CASE("a stopped rank is the culprit and not the rank that gave up on it") {
  const std::string launcher = GENERATE("mpirun", "local");
  const int stopped = GENERATE(0, 1);
  CAPTURE(launcher, stopped);
  const TemporaryFolder temp;
  const CommandResult result = RunJob(
      {"--launcher", launcher, "-np", "2", "--stall-warning", "1", "--stall-timeout", "2",
       "--report-json", temp.path() + "/report", "sh", "-c",
       "[ $RANK = " + std::to_string(stopped) +
           " ] && { tests/ranks/summing 200 & sleep 1; kill -STOP $!; wait; exit 0; }; "
           "exec tests/ranks/summing 200"});
  CHECK(result.exit_code == 76);
  std::stringstream report;
  report << std::ifstream(temp.path() + "/report").rdbuf();
  const auto culprit = ParseJson(report.str()).at("culprit");
  CHECK(culprit.at("rank") == stopped);
}

}  // namespace
