// The strategy parameter_server in real processes: a custom loop of serving_strategy.cc.

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/ranks/dtrun_job.h"
#include "tests/support/subprocess.h"

namespace {

using Catch::Contains;
using dtrun::testing::CommandResult;
using dtrun::testing::RunJob;
using dtrun::testing::TemporaryFolder;
using Words = std::vector<std::string>;

CommandResult Loop(const Words& program, const std::string& servers = "1") {
  Words words = {
      "--launcher",
      "local",
      "-np",
      servers == "1" ? "3" : "4",
      "--ps",
      servers,
      "tests/ranks/serving_strategy"};
  words.insert(words.end(), program.begin(), program.end());
  return RunJob(words);
}

// 1 - (20 + 2 * 20 + 20) / 1024
constexpr char kAll[] = "w0 0.921875, seen 1 to 1, updates 60, lost 0\n";

TEST_CASE("workers share the batches of each epoch and the rates reach the servers") {
  const std::string servers = GENERATE("1", "2");
  const std::string what = GENERATE("train", "whole", "shards");
  const CommandResult result = Loop({what}, servers);
  CAPTURE(servers, what, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains(kAll));
  CHECK_THAT(result.out, Contains("chief: 20 batches, w0 0.921875\n"));
  CHECK(result.err.empty());
}

TEST_CASE("a killed worker's batch goes to another worker of the strategy") {
  const std::string servers = GENERATE("1", "2");
  const TemporaryFolder folder;
  const CommandResult result = Loop({"worker", folder.path()}, servers);
  CAPTURE(servers, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("seen 1 to 1, updates 60, lost 1\n"));
  CHECK_THAT(result.err, Contains("a worker, is lost; its step "));
}

TEST_CASE("workers may leave an epoch early") {
  const CommandResult result = Loop({"early"});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("seen 0 to 1, updates ") && Contains(", lost 0\n"));
}

TEST_CASE("epochs of a second data set and repeated epochs are further steps") {
  const CommandResult result = Loop({"twice"});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains(kAll));
}

TEST_CASE("an evaluation with a data set for training is refused") {
  // One worker, because the first of several may take all batches.
  const CommandResult result = RunJob(
      {"--launcher", "local", "-np", "2", "--ps", "1", "tests/ranks/serving_strategy", "forgets"});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 11);
  CHECK_THAT(
      result.err, Contains("serving_strategy: strategy parameter_server: no step followed the "
                           "batches of an epoch; distribute data for an evaluation with "
                           "DistributeEvaluationDataset\n"));
}

TEST_CASE("a training that has ended is not repeated from its checkpoint") {
  const TemporaryFolder folder;
  const Words words = {"checkpoint", folder.path() + "/saved"};
  const CommandResult first = Loop(words);
  CAPTURE(first.err);
  REQUIRE(first.exit_code == 0);
  CHECK_THAT(first.out, Contains(kAll));
  const CommandResult second = Loop(words, "2");
  CAPTURE(second.err);
  REQUIRE(second.exit_code == 0);
  CHECK_THAT(second.out, Contains("w0 0.921875, seen 1 to 1, updates 0, lost 0\n"));
}

}  // namespace
