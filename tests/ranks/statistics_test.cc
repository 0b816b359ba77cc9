// Step statistics of real ranks in --verbose, --report-json and --metrics-file.

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tests/ranks/dtrun_job.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;
using nlohmann::json;
using Words = std::vector<std::string>;

// The samples of `file`, read by the OpenMetrics parser of the Prometheus client.
std::string SamplesOf(const std::string& file) {
  const CommandResult result =
      Run(Command{.argv = {"/usr/bin/python3", "tests/support/check_open_metrics.py", file}});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return result.out;
}

TEST_CASE("the report has the step statistics of every rank and --verbose prints them") {
  const std::string ranks = GENERATE("2", "4");
  const TemporaryFolder folder;
  const CommandResult result = RunJob(
      {"--verbose", "-np", ranks, "--report-json", folder.path() + "/report", "tests/ranks/steps",
       "12"});
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(std::regex_search(
      result.err,
      std::regex("dtrun: rank 0: 12 steps of [0-9.]+ ms: [0-9.]+ ms of computing, [0-9.]+ ms of "
                 "exposed communication \\([0-9.]+ ms of waiting for late ranks\\); "
                 "12[0-9.]+ kB in 1 bucket a step\n")));
  const json report = ReadJson(folder.path() + "/report");
  REQUIRE(report["ranks"].size() == std::stoul(ranks));
  for (const json& rank : report["ranks"]) {
    const json& steps = rank["steps"];
    CAPTURE(steps.dump());
    CHECK(steps["steps"] == 12);
    CHECK(steps["buckets"] == 12);
    CHECK(steps["bytes"] >= 12 * 31'000 * 4);
    CHECK(steps["seconds"] >= steps["exposed_seconds"]);
    CHECK(steps["exposed_seconds"] >= steps["late_seconds"]);
  }
  // Rank 1 sleeps in every step, so the others wait for it.
  CHECK(report["ranks"][0]["steps"]["late_seconds"] > 0);
  CHECK(report["ranks"][1]["steps"]["compute_seconds"] >= 12 * 0.002);
}

TEST_CASE("a failed job reports its steps and a program without dtrun reports none") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/report";
  CHECK(
      RunJob({"-np", "2", "--report-json", file, "tests/ranks/steps", "5", "kill"}).exit_code ==
      128 + 9);
  json report = ReadJson(file);
  CHECK(report["ranks"][0]["steps"]["steps"] == 5);
  CHECK(report["ranks"][1]["steps"]["steps"] == 5);
  const CommandResult other = RunJob({"-np", "1", "--verbose", "--report-json", file, "true"});
  CHECK(other.exit_code == 0);
  CHECK_THAT(other.err, !Contains("steps of"));
  report = ReadJson(file);
  CHECK(report["ranks"][0]["steps"] == nullptr);
}

TEST_CASE("the metrics file is valid OpenMetrics for every rank during and after the job") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/metrics";
  Command command{
      .argv = {"launcher/dtrun", "-np", "2", "--metrics-file", file, "tests/ranks/steps", "4000"}};
  Subprocess job(command);
  // The file exists before the first rank runs, and is complete at every moment.
  std::string seen;
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  while (seen.find("dtrun_rank_running{1,localhost} 1") == std::string::npos) {
    REQUIRE(std::chrono::steady_clock::now() < late);
    if (std::filesystem::exists(file)) seen = SamplesOf(file);
  }
  CHECK_THAT(seen, Contains("dtrun_steps_total{0,localhost} "));
  CHECK(job.Wait().exit_code == 0);
  const std::string last = SamplesOf(file);
  CHECK_THAT(last, Contains("dtrun_rank_running{0,localhost} 0\n"));
  CHECK_THAT(last, Contains("dtrun_steps_total{1,localhost} 4000\n"));
  CHECK_THAT(last, Contains("dtrun_examples_total{1,localhost} 32000\n"));
  CHECK_THAT(last, Contains("dtrun_buckets_total{1,localhost} 4000\n"));
  CHECK(folder.Entries() == Words{"metrics"});
}

TEST_CASE("an unwritable metrics file is reported before any rank starts") {
  const TemporaryFolder folder;
  for (const std::string& path : {folder.path() + "/none/metrics", folder.path()}) {
    CAPTURE(path);
    const CommandResult result = RunJob({"-np", "1", "--metrics-file", path, "echo", "ran"});
    CHECK(result.exit_code == 73);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, Contains("cannot write " + path));
  }
}

}  // namespace
