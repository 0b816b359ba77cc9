// DistributedOptimizer in processes under dtrun, with two and four ranks.

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace {

using Catch::Matchers::Contains;
using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;

CommandResult Story(
    const std::string& np, const std::string& story, const std::string& backend,
    bool as_dense = false, const std::string& timeout_s = "60") {
  std::vector<std::string> argv = {
      "launcher/dtrun", "--tag", "none", "-np", np, "tests/ranks/optimizer_story", story};
  if (as_dense) argv.push_back("sparse_as_dense");
  return Run(Command{
      .argv = argv, .environment = {{"DTRUN_BACKEND", backend}, {"DTRUN_TIMEOUT_S", timeout_s}}});
}

std::string Says(
    const std::string& np, const std::string& story, const std::string& backend,
    bool as_dense = false) {
  const CommandResult result = Story(np, story, backend, as_dense);
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  return result.out;
}

TEST_CASE("ranks with uneven data and row gradients agree on the weights") {
  const std::string backend = GENERATE("shm", "mpi", "hierarchical");
  const bool as_dense = GENERATE(false, true);
  // The first step averages both ranks and the second has only rank 1: (1 + 2) / 2 + 2. Rank 0
  // marks row 0 twice, and rank 1 marks rows 0 and 1.
  CHECK(Says("2", "uneven", backend, as_dense) == "last 1: -3.5 -3.5  -4 -4 -3 -3 0 0 0 0\n");
  // The bias is (1 + 2 + 3 + 4) / 4 + (2 + 3 + 4) / 3 + (3 + 4) / 2 + 4.
  CHECK(
      Says("4", "uneven", backend, as_dense) ==
      "last 3: -13 -13  -13.25 -13.25 -1.16667 -1.16667 -3.25 -3.25 -8.33333 -8.33333\n");
}

TEST_CASE("processes can freeze and thaw parameters between steps") {
  CHECK(Says("2", "frozen", "shm") == "-2 -2  0 0 0 0 0 0 -2 -2\n");
  CHECK(Says("4", "frozen", "shm", true) == "-2 -2  0 0 0 0 0 0 -12 -12\n");
}

TEST_CASE("ten batches with four passes per step make two steps") {
  CHECK(Says("2", "passes", "shm") == "-1 -1  0 0 0 0 0 0 0 0\n");
  CHECK(Says("4", "passes", "mpi") == "-3 -3  0 0 0 0 0 0 0 0\n");
}

TEST_CASE("strings are gathered and metrics are averaged over all ranks") {
  CHECK_THAT(Says("2", "objects", "shm"), Contains("1 strings, loss 1.000"));
  CHECK_THAT(Says("4", "objects", "hierarchical"), Contains("6 strings, loss 2.333"));
}

TEST_CASE("every rank reports a NaN gradient or a mismatched parameter of one rank") {
  const std::string np = GENERATE("2", "4");
  const std::string others = np == "2" ? "rank 0" : "ranks 0, 2, 3";
  const auto all_say = [&](const std::string& story, const std::string& text) {
    INFO(story);
    std::istringstream out(Story(np, story, "auto").out);
    int lines = 0;
    for (std::string line; std::getline(out, line); ++lines) CHECK(line.substr(3) == text);
    CHECK(std::to_string(lines) == np);
  };
  all_say("not_a_number", "the gradient of 'bias' is infinite or NaN on rank 1 in step 1");
  all_say(
      "frozen_on_one", "parameter 'bias' is frozen on rank 1 and not on " + others +
                           " in step 0; all ranks Freeze() and Thaw() it before the same step");
  all_say(
      "whole_on_one",
      "parameter 'table' was marked with its whole gradient on rank 1 and by rows on " + others +
          "; mark it with MarkRows() on all ranks, or set sparse_as_dense");
}

TEST_CASE("a Join that meets an all-gather ends with an error at the time limit") {
  const CommandResult result = Story("2", "elsewhere", "shm", false, "4");
  CHECK(result.exit_code == 1);
  CHECK_THAT(
      dtrun::testing::WithoutWaits(result.out, 4),
      Contains("gave up after N s: ") && Contains("to call it"));
}

TEST_CASE("a rank that exits while another rank waits in Join is named") {
  const CommandResult result = Story("2", "leaves", "shm");
  CHECK(result.exit_code == 76);
  CHECK_THAT(
      result.err, Contains("rank 1 on localhost exited with code 0 without MPI_Finalize") &&
                      Contains("rank 0 waits in #3, all_reduce"));
}

}  // namespace
