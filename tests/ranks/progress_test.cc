// The --progress line of real ranks on a terminal.

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

// The job's stdout and stderr are one terminal, made by `script` of util-linux.
std::string OnTerminal(const std::string& job) {
  const CommandResult result = Run(Command{
      .argv = {
          "script", "-qec", "stty cols 200; launcher/dtrun --tag none -np 3 " + job, "/dev/null"}});
  CAPTURE(result.out);
  CHECK(result.exit_code == 0);
  return result.out;
}

const std::string kClear = "\r\x1b[K";

TEST_CASE("the --progress line shows steps and the slowest rank and stays apart from output") {
  const std::string shown = OnTerminal("--progress tests/ranks/uneven report");
  CHECK(Finds(
      shown, R"(3 ranks running, step \d+ \([0-9.]+/s\), [0-9.]+ examples/s, )"
             R"(slowest rank 1 \(waits \d+ % of the time, the others \d+ % and more\))"));
  CHECK(Finds(shown, "line 10 of rank 0\r\n"));
  CHECK_FALSE(Finds(shown, "\\)line"));
  CHECK_FALSE(Finds(shown, "running[^\r\n]*line"));
  // The line is cleared at the end.
  CHECK(shown.substr(shown.rfind("running")).find(kClear) != std::string::npos);
}

TEST_CASE("the --progress line counts steps without ReportProgress") {
  const std::string shown = OnTerminal("--progress tests/ranks/uneven");
  CHECK(Finds(shown, R"(3 ranks running, step \d+ \([0-9.]+/s\), slowest rank 1 )"));
}

TEST_CASE(
    "no progress line is shown without --progress and no step is shown for a program without "
    "dtrun") {
  CHECK(OnTerminal("sleep 1.5") == "");
  const std::string shown = OnTerminal("--progress sleep 2.5");
  CHECK_THAT(shown, Contains("3 ranks running" + kClear));
}

}  // namespace
