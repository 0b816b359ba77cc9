#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "launcher/agent/rank_view.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"
#include "tests/support/subprocess.h"

namespace dtrun::launcher {
namespace {

using Words = std::vector<std::string>;

const Words kDifficult = {"",      "a b",  "$(id)", "x'y\"z",   "n\nl",  "*",   "--",
                          "`id`",  "\\n",  "\t",    "\x01",     "!",     "~",   "#",
                          "a=b c", "'\n'", ":",     "\xc3\xa9", "{a,b}", "$'x'"};

TEST_CASE("a rank that is killed while it is stopped stays reported as stopped") {
  const testing::TemporaryFolder folder;
  const testing::Subprocess program({{"sleep", "600"}});
  RankView view(folder.path(), 0, getpid());
  view.SetProgram(program.pid());
  CHECK_THAT(view.Look().value_or(""), Catch::Contains("\"stopped\":false"));
  kill(program.pid(), SIGSTOP);
  while (!ViewProcess(program.pid()).value().stopped()) std::this_thread::yield();
  CHECK_THAT(view.Look().value_or(""), Catch::Contains("\"stopped\":true"));
  kill(program.pid(), SIGKILL);
  while (ViewProcess(program.pid()).value_or(ProcessView()).running()) std::this_thread::yield();
  CHECK(view.Look() == std::nullopt);
}

TEST_CASE("bash reads quoted words back unchanged") {
  std::string expected;
  for (const std::string& word : kDifficult) expected += "<" + word + ">";
  const auto result = testing::Run({{"bash", "-c", "printf '<%s>' " + ShellLine(kDifficult)}});
  CHECK(result.out == expected);
}

TEST_CASE("a quoted line has no line break") {
  CHECK(ShellLine(kDifficult).find('\n') == std::string::npos);
}

TEST_CASE("plain words are not quoted") {
  CHECK(ShellLine({"mpirun", "-H", "h1:2,h2:2", "./train"}) == "mpirun -H h1:2,h2:2 ./train");
}

TEST_CASE("a line is split into words at spaces outside quotes") {
  CHECK(SplitWords("").empty());
  CHECK(SplitWords("  a   b\t") == Words{"a", "b"});
  CHECK(SplitWords("a 'b c' \"d e\"f '' g\\ h") == Words{"a", "b c", "d ef", "", "g h"});
  CHECK(SplitWords("$HOME *") == Words{"$HOME", "*"});
  CHECK_THROWS_AS(SplitWords("a 'b"), UsageError);
}

TEST_CASE("a system file is read completely with its zero bytes") {
  const auto line = ReadFileOfSystem("/proc/self/cmdline");
  REQUIRE(line);
  CHECK(line->back() == '\0');
  CHECK(ReadFileOfSystem("/proc/self/maps")->size() > 4096);  // more than one read returns
}

TEST_CASE("an unreadable system file gives no value and no exception") {
  CHECK_FALSE(ReadFileOfSystem("/proc/self/no-such-file"));
  CHECK_FALSE(ReadFileOfSystem("/proc/self"));  // can be opened but not read
}

}  // namespace
}  // namespace dtrun::launcher
