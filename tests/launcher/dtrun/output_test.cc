// The output of ranks, on dtrun's own streams and in files.

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "base/text.h"
#include "tests/launcher/dtrun/process_test.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

using namespace std::chrono_literals;

std::set<std::string> Lines(const std::string& text) {
  const Words lines = base::Split(text, '\n');
  return {lines.begin(), lines.end()};
}

TEST_CASE("each line is tagged with its rank and stays on its stream") {
  const DtrunTest test;
  const CommandResult result = test.Run(
      {"--tag", "rank", "-np", "2", "sh", "-c", "echo out; echo err >&2; printf 'no end'"});
  CHECK(
      Lines(result.out) == std::set<std::string>{
                               "[1,0]<stdout>:out", "[1,1]<stdout>:out", "[1,0]<stdout>:no end",
                               "[1,1]<stdout>:no end"});
  CHECK(Lines(result.err) == std::set<std::string>{"[1,0]<stderr>:err", "[1,1]<stderr>:err", ""});
}

TEST_CASE("--tag host shows the host and --timestamps shows the time") {
  const DtrunTest test;
  const CommandResult result =
      test.Run({"--tag", "host", "--timestamps", "-np", "1", "echo", "hello"});
  CHECK(std::regex_match(
      result.out,
      std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} \[localhost,0\]<stdout>:hello\n)")));
}

TEST_CASE("ranks that write at the same time never share a line") {
  const DtrunTest test;
  const std::string line(300, 'x');
  const CommandResult result = test.RunScript(
      4, "i=0; while [ $i -lt 500 ]; do printf 'a%s' " + line + "; printf '%sb\\n' " + line +
             "; i=$((i+1)); done");
  CHECK(Lines(result.out) == std::set<std::string>{"a" + line + line + "b", ""});
  CHECK(LineCount(result.out) == 2000);
}

TEST_CASE("--ranks limits the shown output but not the output files") {
  const DtrunTest test;
  const CommandResult result = test.Run(
      {"-np", "4", "--ranks", "0,2-3", "--output-dir", test.temp.path() + "/logs", "sh", "-c",
       "echo $OMPI_COMM_WORLD_RANK"});
  CHECK(Lines(result.out) == std::set<std::string>{"0", "2", "3", ""});
  CHECK(ReadText(test.temp.path() + "/logs/rank.1/stdout") == "1\n");
}

TEST_CASE("output files hold the output byte for byte") {
  const DtrunTest test;
  const CommandResult result = test.Run(
      {"-np", "2", "--output-dir", test.temp.path() + "/logs", "sh", "-c",
       "printf 'a\\r\\n\\000\\377\\tb'; printf 'c' >&2"});
  for (const std::string rank : {"0", "1"}) {
    const std::string folder = test.temp.path() + "/logs/rank." + rank;
    CHECK(ReadText(folder + "/stdout") == std::string("a\r\n\0\377\tb", 7));
    CHECK(ReadText(folder + "/stderr") == "c");
  }
}

TEST_CASE("an unusable output folder is refused before the ranks start") {
  const DtrunTest test;
  const std::string file = test.temp.Write("file", "");
  const CommandResult result =
      test.Run({"-np", "1", "--output-dir", file + "/logs", "echo", "started"});
  CHECK(result.exit_code == 73);
  CHECK(result.out == "");
  CHECK_THAT(result.err, Catch::Contains(file + "/logs"));
}

TEST_CASE(
    "an output folder that belongs to another user is refused and symbolic links are not "
    "followed") {
  const DtrunTest test;
  const std::string foreign = test.temp.path() + "/foreign", own = test.temp.path() + "/own";
  std::filesystem::create_directory(foreign);
  std::filesystem::permissions(foreign, std::filesystem::perms::all);
  if (chown(foreign.c_str(), 65534, 65534) == 0) {  // only root may change the owner
    const CommandResult refused =
        test.Run({"-np", "1", "--output-dir", foreign, "echo", "started"});
    CHECK(refused.exit_code == 73);
    CHECK(refused.out == "");
    CHECK_THAT(refused.err, Catch::Contains(foreign) && Catch::Contains("user 65534"));
  }
  const std::string victim = test.temp.Write("victim", "precious\n");
  std::filesystem::create_directories(own + "/rank.0");
  std::filesystem::create_symlink(victim, own + "/rank.0/stdout");
  const CommandResult result = test.Run({"-np", "1", "--output-dir", own, "echo", "started"});
  CHECK(result.exit_code == 73);
  CHECK_THAT(result.err, Catch::Contains("rank.0/stdout"));
  CHECK(Run({{"cat", victim}}).out == "precious\n");
}

TEST_CASE("a full disk stops the output files but not the job") {
  const DtrunTest test;
  const std::string logs = test.temp.path() + "/logs";
  std::filesystem::create_directories(logs + "/rank.0");
  std::filesystem::create_symlink("/dev/full", logs + "/rank.0/stdout");
  const CommandResult result = test.Run({"-np", "1", "--output-dir", logs, "echo", "trained"});
  CHECK(result.out == "trained\n");
  CHECK(result.exit_code == 73);
  CHECK_THAT(result.err, Catch::Contains("cannot write " + logs + "/rank.0/stdout"));
}

// Runs a job. `redirected` sends its output to a file system of 64 KiB.
CommandResult WithoutRoom(const DtrunTest& test, const std::string& redirected) {
  return Run(
      {.argv =
           {"unshare", "-m", "bash", "-c",
            "mkdir $TMPDIR/disk; mount -t tmpfs -o size=64k tmpfs $TMPDIR/disk || exit 77; "
            "\"$@\" " +
                redirected + "; code=$?; sort -u $TMPDIR/disk/*; exit $code",
            "bash", DtrunTest::Dtrun(), "--tag", "none", "--launcher", test.launcher, "-np", "2",
            "sh", "-c", "seq -f '%09.0f' 9000; sleep 0.3; echo last; echo done >&2"},
       .environment = {{"TMPDIR", test.temp.path()}, {"OMPI_ALLOW_RUN_AS_ROOT", "1"}}});
}

TEST_CASE("output lost on a full stdout is reported once and gives exit code 73") {
  DtrunTest test = {.launcher = GENERATE(as<std::string>(), "mpirun", "local")};
  const std::string lost =
      "dtrun: cannot write to stdout: No space left on device; the rest of what the ranks write "
      "there is lost\n";
  const CommandResult full = Run(
      {{"sh", "-c",
        "exec " + DtrunTest::Dtrun() + " -np 2 --tag none --launcher " + test.launcher +
            " sh -c 'echo hi; sleep 0.2; echo hi; exit '$0 >/dev/full",
        "0"}});
  CHECK(full.exit_code == 73);
  CHECK(full.err == lost);
  const CommandResult result = WithoutRoom(test, ">$TMPDIR/disk/log");
  if (result.exit_code == 77 || result.err.find("unshare failed") != std::string::npos) {
    std::printf("SKIPPED: mounting is not allowed here\n");
    return;
  }
  CHECK(result.exit_code == 73);
  CHECK(LineCount(result.err) == 3);
  CHECK_THAT(result.err, Catch::Contains(lost) && Catch::Contains("done\ndone\n"));
  CHECK_THAT(result.out, Catch::Contains("000000001\n000000002\n"));
}

TEST_CASE("a failed job keeps its exit code if stdout is full") {
  const DtrunTest test;
  const std::string report = test.temp.path() + "/report";
  const auto run = [&](const std::string& code) {
    return Run(
        {{"sh", "-c",
          "exec " + DtrunTest::Dtrun() + " -np 1 --report-json " + report +
              " sh -c 'echo hi; exit '$0 >/dev/full",
          code}});
  };
  const CommandResult failed = run("5");
  CHECK(failed.exit_code == 5);
  CHECK_THAT(failed.err, Catch::Contains("cannot write to stdout"));
  CHECK(run("0").exit_code == 73);
  CHECK_THAT(
      ReadText(report),
      Catch::Contains("\"reason\": \"cannot write to stdout: No space left on device\""));
}

TEST_CASE("stdout of a rank is a terminal and stderr is not") {
  const DtrunTest test;
  const CommandResult result = test.RunScript(1, "test -t 1 && echo yes; test -t 2 || echo no");
  CHECK(result.out == "yes\nno\n");
}

TEST_CASE("late output from a child of a rank is still shown") {
  const DtrunTest test;
  CHECK(test.RunScript(1, "(sleep 0.3; echo late) & echo early; wait").out == "early\nlate\n");
}

TEST_CASE("the job ends when the reader of dtrun's output leaves") {
  const DtrunTest test;
  const CommandResult result = Run(
      {{"bash", "-c",
        DtrunTest::Dtrun() + " -np 2 --ranks 0 yes | head -2; echo ${PIPESTATUS[0]}"}});
  CHECK(result.out == "[1,0]<stdout>:y\n[1,0]<stdout>:y\n141\n");
  CHECK(result.err == "");
}

TEST_CASE("while dtrun's output is not read the ranks wait and the memory stays bounded") {
  const DtrunTest test;
  const CommandResult result = Run(
      {{"bash", "-c",
        DtrunTest::Dtrun() +
            " -np 2 --tag none yes | { sleep 1; for p in $(pgrep -P $PPID -x dtrun; "
            "pgrep -x dtrun_agent); do sed -n 's/VmRSS: *//p' /proc/$p/status; done; head -1; }"}});
  std::istringstream lines(result.out);
  std::string unit;
  int processes = 0;
  for (long kib = 0; lines >> kib >> unit; ++processes) CHECK(kib < 40'000);
  CHECK(processes >= 1);
}

TEST_CASE("the last lines of the failed rank are repeated if other output has hidden them") {
  const DtrunTest test;
  const std::string others = GENERATE("1 5", "1 50");
  const CommandResult result = test.RunScript(
      2,
      "until_made() { until [ -e $TMPDIR/$1 ]; do sleep 0.02; done; sleep 0.5; }; "
      "[ $OMPI_COMM_WORLD_RANK = 1 ] && "
      "{ echo no such layer >&2; touch $TMPDIR/first; until_made second; exit 4; }; "
      "until_made first; seq " +
          others + " >&2; touch $TMPDIR/second; sleep 600");
  CHECK(result.exit_code == 4);
  CHECK_THAT(
      result.err, Catch::Contains(
                      (others == "1 5" ? "5\n"
                                       : "50\ndtrun: rank 1 wrote last to stderr:\n"
                                         "dtrun:   no such layer\n") +
                      std::string("dtrun: rank 1 on localhost exited with code 4\n")));
}

TEST_CASE("--ranks accepts only rank numbers of the job") {
  const DtrunTest test;
  const std::string list = GENERATE(as<std::string>(), "0,4", "-1", "2-1", "x", "0,,1", "");
  const CommandResult result = test.Run({"-np", "4", "--ranks", list, "true"});
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Catch::Contains("--ranks"));
}

}  // namespace
}  // namespace dtrun::testing
