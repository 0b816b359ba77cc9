// Jobs with parameter servers as real processes, started by mpirun and without it.

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "tests/ranks/dtrun_job.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"

namespace {

using Catch::Contains;
using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::ReadJson;
using dtrun::testing::Run;
using dtrun::testing::RunJob;
using dtrun::testing::TemporaryFolder;
using Words = std::vector<std::string>;

CommandResult ServingJob(const Words& launch, const Words& program) {
  Words words = launch;
  words.push_back("tests/ranks/serving");
  words.insert(words.end(), program.begin(), program.end());
  return RunJob(words);
}

TEST_CASE("workers train variables that servers hold") {
  const std::string launcher = GENERATE("mpirun", "local");
  const std::string servers = GENERATE("1", "2");
  const CommandResult result = ServingJob(
      {"--launcher", launcher, "-np", servers == "1" ? "3" : "4", "--ps", servers}, {"64"});
  CAPTURE(launcher, servers, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("from 0: w0 0.9375, count 64, updates 64, lost 0\n"));
  CHECK_THAT(result.out, Contains("staleness 0: "));
  CHECK(result.err.empty());
}

TEST_CASE("a killed worker does not end the job") {
  const std::string launcher = GENERATE("mpirun", "local");
  const TemporaryFolder folder;
  const std::string report = folder.path() + "/report.json";
  const CommandResult result = ServingJob(
      {"--launcher", launcher, "-np", "4", "--ps", "1", "--report-json", report},
      {"2000", "worker", folder.path()});
  CAPTURE(launcher, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("updates 2000, lost 1\n"));
  CHECK_THAT(result.err, Contains("rank 3 on localhost, a worker, is lost; its step "));
  CHECK_THAT(result.err, Contains(" is handed out again; "));
  const auto told = ReadJson(report);
  CHECK(told["exit_code"] == 0);
  CHECK(told["ranks"][3]["signal_name"] == "SIGKILL");
}

TEST_CASE("a worker killed together with its wrapper does not end the job") {
  const std::string launcher = GENERATE("mpirun", "local");
  const TemporaryFolder folder;
  const CommandResult result = ServingJob(
      {"--launcher", launcher, "-np", "4", "--ps", "1"}, {"2000", "wrapper", folder.path()});
  CAPTURE(launcher, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("updates 2000, lost 1\n"));
  CHECK_THAT(
      result.err,
      Contains("dtrun: rank 3 on localhost was killed together with its wrapper; the job ") &&
          Contains(" on without this worker (--ps)\n"));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 2);  // one from the server
}

TEST_CASE("a server killed together with its wrapper is named and ends the job") {
  const std::string launcher = GENERATE("mpirun", "local");
  const CommandResult result =
      ServingJob({"--launcher", launcher, "-np", "4", "--ps", "2"}, {"2000", "gone"});
  CAPTURE(launcher, result.err);
  CHECK(result.exit_code == 137);
  CHECK_THAT(
      result.err, Contains("dtrun: rank 0 on localhost was killed together with its wrapper\n"));
}

TEST_CASE("servers do not wait for a worker that exited before it connected") {
  const std::string launcher = GENERATE("mpirun", "local");
  Words argv = {
      "launcher/dtrun",      "--tag", "none",  "--launcher", launcher, "-np", "3", "--ps", "1",
      "tests/ranks/serving", "64",    "absent"};
  // The limit is half of the time that servers wait for a missing worker.
  const CommandResult result = Run(Command{.argv = argv, .timeout = std::chrono::seconds(15)});
  CAPTURE(launcher, result.err);
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("updates 64, lost 0\n"));
}

TEST_CASE("the job ends and names the cause when no worker is left") {
  const std::string launcher = GENERATE("mpirun", "local");
  CAPTURE(launcher);
  const CommandResult killed =
      ServingJob({"--launcher", launcher, "-np", "3", "--ps", "1"}, {"2000", "workers"});
  CHECK(killed.exit_code == 137);
  CHECK_THAT(killed.err, Contains(" was killed by SIGKILL"));
  const CommandResult failed =
      ServingJob({"--launcher", launcher, "-np", "3", "--ps", "1"}, {"2000", "fail"});
  CHECK(failed.exit_code == 9);
  CHECK_THAT(failed.err, Contains("exited with code 9; no worker is left\n"));
}

TEST_CASE("the loss of a server ends the job and the next job resumes from the checkpoint") {
  const std::string launcher = GENERATE("mpirun", "local");
  const TemporaryFolder folder;
  const Words launch = {"--launcher", launcher, "-np", "4", "--ps", "2"};
  CAPTURE(launcher);
  CHECK(ServingJob(launch, {"16", "", folder.path()}).exit_code == 0);
  const CommandResult lost = ServingJob(launch, {"40", "server", folder.path()});
  CHECK(lost.exit_code == 137);
  CHECK_THAT(
      lost.err,
      Contains("dtrun: rank 0 on localhost was killed by SIGKILL\n") &&
          Contains("hint: rank 0 held variables (--ps), which are lost; start the "
                   "job again (a job that saves checkpoints continues from the newest)\n"));
  // The next job has another number of servers, so variables and optimizer state are cut again.
  const CommandResult again =
      ServingJob({"--launcher", launcher, "-np", "3", "--ps", "1"}, {"32", "", folder.path()});
  CAPTURE(again.err);
  CHECK(again.exit_code == 0);
  CHECK_THAT(again.out, Contains("from 16: w0 0.96875, count 32, updates 16, lost 0\n"));
}

TEST_CASE("an evaluator reads the last values") {
  const CommandResult result =
      ServingJob({"--launcher", "local", "-np", "4", "--ps", "1"}, {"64", "evaluator"});
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("evaluator: w0 0.9375\n"));
}

// The TF_CONFIG of one of four tasks on this host.
std::string TfConfig(const std::string& type, int index) {
  return R"({"cluster": {"ps": ["localhost:1"], "chief": ["localhost:2"],
    "worker": ["localhost:3"], "evaluator": ["localhost:4"]}, "task": {"type": ")" +
         type + R"(", "index": )" + std::to_string(index) + "}}";
}

TEST_CASE("processes that are started by hand take their roles from TF_CONFIG") {
  std::vector<std::future<CommandResult>> processes;
  for (const char* type : {"ps", "chief", "worker", "evaluator"})
    processes.push_back(std::async(std::launch::async, [type] {
      return Run(Command{
          .argv = {"tests/ranks/serving", "64"},
          .environment = {{"TF_CONFIG", TfConfig(type, 0)}},
          .timeout = std::chrono::seconds(60)});
    }));
  for (std::future<CommandResult>& process : processes) {
    const CommandResult result = process.get();
    CHECK(result.err == "");
    CHECK(result.exit_code == 0);
    if (&process == &processes.front())
      CHECK_THAT(result.out, Contains("from 0: w0 0.9375, count 64, updates 64, lost 0\n"));
    if (&process == &processes.back()) CHECK(result.out == "evaluator: w0 0.9375\n");
  }
}

TEST_CASE("dtrun takes hosts and roles from TF_CONFIG") {
  const CommandResult result = Run(Command{
      .argv =
          {"launcher/dtrun", "--launcher", "local", "--tag", "none", "tests/ranks/serving", "64"},
      .environment = {{"TF_CONFIG", TfConfig("chief", 0)}},
      .timeout = std::chrono::seconds(60)});
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("from 0: w0 0.9375, count 64, updates 64, lost 0\n"));
  CHECK_THAT(result.out, Contains("evaluator: w0 0.9375\n"));
}

TEST_CASE("a worker with different variables gets an error with both and the job continues") {
  const CommandResult result =
      ServingJob({"--launcher", "local", "-np", "3", "--ps", "1"}, {"2000", "other"});
  CHECK(result.exit_code == 0);
  CHECK_THAT(
      result.err,
      Contains("serving: parameter server 0 has variable b: f32 (3) in 1 part, rank 2 on localhost "
               "has variable b: f32 (1, 3) in 1 part\n"));
}

TEST_CASE("a job without servers or without workers is refused in one line") {
  const CommandResult none = ServingJob({"--launcher", "local", "-np", "2"}, {"8"});
  CHECK(none.exit_code == 11);
  CHECK_THAT(
      none.err,
      Contains("serving: this job has no parameter servers; start it with dtrun --ps N\n"));
  const CommandResult alone =
      ServingJob({"--launcher", "local", "-np", "2", "--ps", "1"}, {"8", "evaluator"});
  CHECK(alone.exit_code == 11);
  CHECK_THAT(
      alone.err, Contains("serving: of 2 ranks, 1 is a parameter server and one the evaluator; "
                          "expected at least one more, a worker\n"));
}

}  // namespace
