// What --progress shows of real ranks, on a terminal.

#include <catch2/catch.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace {

using Catch::Matchers::Contains;
using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;

bool Finds(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

// stdout and stderr are one terminal; a program of util-linux makes it.
std::string OnTerminal(const std::string& job) {
  const CommandResult result = Run(Command{
      .argv = {
          "script", "-qec", "stty cols 200; launcher/dtrun --tag none -np 3 " + job, "/dev/null"}});
  CAPTURE(result.out);
  CHECK(result.exit_code == 0);
  return result.out;
}

const std::string kClear = "\r\x1b[K";

TEST_CASE("--progress shows ranks, steps, examples and the slowest rank, apart from all output") {
  const std::string shown = OnTerminal("--progress tests/ranks/uneven report");
  CHECK(Finds(
      shown, R"(3 ranks running, step \d+ \([0-9.]+/s\), [0-9.]+ examples/s, )"
             R"(slowest rank 1 \(waits \d+ % of the time, the others \d+ % and more\))"));
  CHECK(Finds(shown, "line 10 of rank 0\r\n"));
  CHECK_FALSE(Finds(shown, "\\)line"));
  CHECK_FALSE(Finds(shown, "running[^\r\n]*line"));
  // It is gone at the end.
  CHECK(shown.substr(shown.rfind("running")).find(kClear) != std::string::npos);
}

TEST_CASE("steps are counted for a trainer that reports nothing") {
  const std::string shown = OnTerminal("--progress tests/ranks/uneven");
  CHECK(Finds(shown, R"(3 ranks running, step \d+ \([0-9.]+/s\), slowest rank 1 )"));
}

TEST_CASE(
    "without --progress nothing is shown, and ranks that know nothing of dtrun have no step") {
  CHECK(OnTerminal("sleep 1.5") == "");
  const std::string shown = OnTerminal("--progress sleep 2.5");
  CHECK_THAT(shown, Contains("3 ranks running" + kClear));
}

}  // namespace
