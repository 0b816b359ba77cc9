// The report at the end of a job: for people, and for programs with --report-json.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>

#include "base/text.h"
#include "tests/launcher/dtrun/process_test.h"
#include "tests/support/json.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

struct ReportTest : DtrunTest {
  std::string file = temp.path() + "/report.json";

  // Runs `arguments` and returns the report.
  json Report(const Words& arguments, int expected_code) const {
    Words words = {"--report-json", file};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const CommandResult result = Run(words);
    CAPTURE(result.err);
    CHECK(result.exit_code == expected_code);
    CHECK(temp.Entries() == Words{"report.json"});
    const json report = ReadJson(file);
    CHECK(report["exit_code"] == expected_code);
    return report;
  }
};

const std::string kOnRankOne = "[ $RANK = 1 ] || exec sleep 600; ";

std::string Hungry() { return std::filesystem::absolute(std::getenv("HUNGRY")); }

bool IsTime(const json& time) {
  static const std::regex pattern(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)");
  return time.is_string() && std::regex_match(time.get<std::string>(), pattern);
}

TEST_CASE("the report of a successful job has no culprit") {
  const ReportTest test;
  const json report = test.Report({"-np", "2", "sh", "-c", "exit 0"}, 0);
  CHECK(report["whose"] == "rank");
  CHECK(report["reason"] == "");
  CHECK(report["command"] == json{"sh", "-c", "exit 0"});
  CHECK(report["np"] == 2);
  CHECK(report["hosts"] == ParseJson(R"([{"name": "localhost", "slots": 2}])"));
  CHECK(IsTime(report["started"]));
  CHECK(report["seconds"] > 0);
  CHECK(report["culprit"] == nullptr);
  for (const json& rank : report["ranks"]) {
    CHECK(rank["role"] == "ended well");
    CHECK(rank["exit_code"] == 0);
    CHECK(rank["pid"] > 0);
    CHECK(IsTime(rank["started"]));
    CHECK(IsTime(rank["ended"]));
  }
  struct stat status = {};
  REQUIRE(stat(test.file.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("the report of a failed rank names the rank and its last lines") {
  const ReportTest test;
  const json report =
      test.Report({"-np", "2", "sh", "-c", kOnRankOne + "echo a >&2; echo b >&2; exit 3"}, 3);
  CHECK(report["whose"] == "rank");
  CHECK(report["reason"] == "rank 1 on localhost exited with code 3");
  const json& culprit = report["culprit"];
  CHECK(culprit["rank"] == 1);
  CHECK(culprit["host"] == "localhost");
  CHECK(culprit["local_rank"] == 1);
  CHECK(culprit["exit_code"] == 3);
  CHECK(culprit["signal"] == nullptr);
  CHECK(culprit["last_lines"] == json{"a", "b"});
  CHECK(culprit["activity"] == nullptr);
  CHECK(IsTime(culprit["time"]));
  CHECK(report["ranks"][0]["role"] == "victim");
  CHECK(report["ranks"][1]["role"] == "culprit");
}

TEST_CASE("the report of a killed rank has the signal and no guess at the cause") {
  const ReportTest test;
  const json report = test.Report({"-np", "2", "sh", "-c", kOnRankOne + "kill -KILL $$"}, 137);
  CHECK(report["whose"] == "rank");
  CHECK(report["culprit"]["signal"] == 9);
  CHECK(report["culprit"]["signal_name"] == "SIGKILL");
  CHECK(report["culprit"]["exit_code"] == nullptr);
  CHECK(report["hints"] == json::array());
}

TEST_CASE("the report of a job that could not start attributes the exit code to dtrun") {
  const ReportTest test;
  const json report = test.Report({"-np", "2", "./no-such-program"}, 127);
  CHECK(report["whose"] == "dtrun");
  CHECK_THAT(report["reason"].get<std::string>(), Contains("no-such-program"));
  CHECK(report["culprit"] == nullptr);
  REQUIRE(report["ranks"].size() == 2);
  CHECK(report["ranks"][1]["role"] == "not started");
  CHECK(report["ranks"][1]["pid"] == nullptr);
}

TEST_CASE("the report of a job that exceeded --timeout blames no rank") {
  const ReportTest test;
  const json report = test.Report({"-np", "2", "--timeout", "1", "sleep", "50"}, 124);
  CHECK(report["whose"] == "dtrun");
  CHECK(report["culprit"] == nullptr);
  CHECK(report["ranks"][0]["role"] == "ended");
}

TEST_CASE("an exit code of a rank is attributed to the rank even if dtrun uses the same code") {
  const ReportTest test;
  CHECK(test.Report({"-np", "1", "sh", "-c", "exit 124"}, 124)["whose"] == "rank");
}

TEST_CASE("an unwritable report is refused before the ranks start") {
  const DtrunTest test;
  const CommandResult result = test.Run(
      {"-np", "2", "--report-json", test.temp.path() + "/no/such/file", "echo", "started"});
  CHECK(result.exit_code == 73);
  CHECK(result.out == "");
  CHECK(LineCount(result.err) == 1);
  CHECK(test.temp.Entries().empty());
  const std::string script = GENERATE("exit 0", "exit 5");
  CHECK(
      test.Run({"-np", "1", "--report-json", "/dev/full", "sh", "-c", script}).exit_code ==
      (script == "exit 0" ? 73 : 5));
}

TEST_CASE("a rank that exceeds its address space limit gets a hint with the limit") {
  const ReportTest test;
  const json report = test.Report(
      {"-np", "2", "sh", "-c",
       kOnRankOne + "exec prlimit --core=0 --as=100000000 " + Hungry() + " 500"},
      134);
  REQUIRE(report["hints"].size() == 1);
  CHECK_THAT(
      report["hints"][0].get<std::string>(),
      Contains("ran out of memory") && Contains("95 MiB") && Contains("prlimit --as"));
}

// A memory cgroup with a limit. `usable` is false if the cgroup cannot be made.
struct LimitedMemory {
  std::string folder = base::Text("/sys/fs/cgroup/memory/dtrun-test-", getpid());
  bool usable = false;

  explicit LimitedMemory(int mebibytes) {
    std::error_code error;
    if (!std::filesystem::create_directory(folder, error)) return;
    std::ofstream limit(folder + "/memory.limit_in_bytes");
    limit << (int64_t{mebibytes} << 20) << std::flush;
    usable = limit.good();
  }
  ~LimitedMemory() { rmdir(folder.c_str()); }
};

TEST_CASE("a rank that the kernel killed for lack of memory gets a hint") {
  const LimitedMemory memory(128);
  if (!memory.usable) {
    WARN(
        "skipped: " << memory.folder
                    << " cannot be made (no memory cgroup of version 1, or not "
                       "root)");
    return;
  }
  const DtrunTest test;
  Command line = test.Line({"-np", "2", "sh", "-c", kOnRankOne + "exec " + Hungry() + " 600"});
  line.argv.insert(
      line.argv.begin(),
      {"sh", "-c", "echo $$ > " + memory.folder + "/cgroup.procs; exec \"$@\"", "sh"});
  const CommandResult result = testing::Run(line);
  CAPTURE(result.err);
  CHECK(result.exit_code == 137);
  CHECK_THAT(result.err, Contains("dtrun: rank 1 on localhost was killed by SIGKILL\n"));
  CHECK_THAT(
      result.err, Contains("dtrun: hint: the kernel killed the rank for lack of memory: ") &&
                      Contains("limited to 128 MiB"));
}

TEST_CASE("a rank that failed on a full disk gets a hint with the file system") {
  const DtrunTest test;
  const std::string disk = test.temp.path() + "/disk";
  std::filesystem::create_directory(disk);
  if (testing::Run({{"unshare", "-m", "true"}}).exit_code != 0) {
    WARN("skipped: no file system can be mounted here");
    return;
  }
  Command line = test.Line({"-np", "2", "sh", "-c", kOnRankOne + "cat /dev/zero > zeros"});
  line.argv.insert(
      line.argv.begin(),
      {"unshare", "-m", "sh", "-c",
       "mount -t tmpfs -o size=64k none " + disk + " && cd " + disk + " && exec \"$@\"", "sh"});
  const CommandResult result = testing::Run(line);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, Contains("dtrun: hint: the file system of " + disk + " is full\n"));
}

TEST_CASE("a bus error gets a hint with the free space") {
  const DtrunTest test;
  const CommandResult result = test.RunScript(2, kOnRankOne + "kill -BUS $$");
  CHECK(result.exit_code == 128 + SIGBUS);
  CHECK_THAT(result.err, Contains("dtrun: hint: SIGBUS: ") && Contains(" in /dev/shm"));
}

}  // namespace
}  // namespace dtrun::testing
