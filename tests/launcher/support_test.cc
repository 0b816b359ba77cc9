#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "launcher/agent/host_ranks.h"
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

TEST_CASE("left-overs are the descendants of a younger process, not those of an ancestor") {
  const testing::Subprocess sibling({{"sleep", "600"}});
  const pid_t agent = fork();
  if (agent == 0) {
    LeftOvers all;
    all.Look(getppid());
    all.Kill();
    _exit(7);
  }
  int status = 0;
  waitpid(agent, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(ViewProcess(sibling.pid()).value().running());
  CHECK(IsOutsideOfJob(1));

  const testing::Subprocess daemon({{"sh", "-c", "sleep 600 & wait"}});
  while (DescendantsOf(daemon.pid()).empty()) std::this_thread::yield();
  const pid_t descendant = DescendantsOf(daemon.pid()).back();
  LeftOvers left_overs;
  left_overs.Look(daemon.pid());
  left_overs.Kill();
  while (ViewProcess(descendant).value_or(ProcessView()).running()) std::this_thread::yield();
  while (ViewProcess(daemon.pid()).value_or(ProcessView()).running()) std::this_thread::yield();
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
