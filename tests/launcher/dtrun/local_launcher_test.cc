// Ranks that dtrun starts without mpirun. failure_test.cc covers the failures of such jobs.

#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "base/text.h"
#include "tests/launcher/dtrun/process_test.h"
#include "tests/support/json.h"

namespace dtrun::testing {
namespace {

using Catch::Contains;

// A machine without mpirun in PATH.
struct LocalTest : DtrunTest {
  LocalTest() {
    launcher = "local";
    environment = {{"PATH", temp.path()}};
  }
};

pid_t LocalEngineOf(pid_t dtrun) {
  std::ifstream children(base::Text("/proc/", dtrun, "/task/", dtrun, "/children"));
  for (pid_t child; children >> child;) {
    std::string name;
    std::getline(std::ifstream(base::Text("/proc/", child, "/comm")), name);
    if (name == "dtrun_local") return child;
  }
  return -1;
}

TEST_CASE("--launcher local needs no mpirun and gives each rank its number") {
  const LocalTest test;
  const CommandResult result =
      test.Run({"-np", "3", "/bin/sh", "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE $DTRUN_HOSTS"});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  Words lines = base::Split(result.out, '\n');
  std::sort(lines.begin(), lines.end());
  CHECK(lines == Words{"", "0 0 3 localhost:3", "1 1 3 localhost:3", "2 2 3 localhost:3"});
  CHECK(test.temp.Entries().empty());
  const CommandResult chosen = testing::Run(
      {{DtrunTest::Dtrun(), "-v", "-np", "2", "/bin/true"}, {{"PATH", test.temp.path()}}});
  CHECK(chosen.exit_code == 0);
  CHECK_THAT(chosen.err, Contains("mpirun was not found in PATH; dtrun uses --launcher local\n"));
}

TEST_CASE("many ranks run and get their arguments unchanged") {
  const LocalTest test;
  const CommandResult result =
      test.Run({"-np", "40", "/bin/sh", "-c", "printf '<%s>\\n' \"$@\"", "sh", "+", "a b", ":"});
  CHECK(result.exit_code == 0);
  CHECK(LineCount(result.out) == 120);
  CHECK_THAT(result.out, Contains("<+>\n<a b>\n<:>\n"));
}

TEST_CASE("output tags and CPU binding work as with mpirun") {
  const LocalTest test;
  const CommandResult tagged = test.Run({"--tag", "rank", "-np", "1", "/bin/echo", "hi"});
  CHECK(tagged.out == "[1,0]<stdout>:hi\n");
  const int ranks = static_cast<int>(std::thread::hardware_concurrency()) + 1;
  CHECK(
      test.Run({"-np", base::Text(ranks), "--ranks", "0", "/bin/sh", "-c", "echo $DTRUN_THREADS"})
          .out == "1\n");
  const CommandResult said = test.Run({"-np", "2", "--verbose", "--bind", "none", "/bin/true"});
  CHECK_THAT(
      said.err, Contains("/dtrun_local 2 ") && Contains("dtrun: rank 0 on localhost: ") &&
                    Contains("dtrun: rank 1 on localhost: "));
}

TEST_CASE("--launcher local refuses other hosts and --mpi-args in one line") {
  const LocalTest test;
  for (const char* hosts : {"localhost:1,127.0.0.1:1", "elsewhere:2"}) {
    const CommandResult result = test.Run({"-H", hosts, "/bin/true"});
    CHECK(result.exit_code == 2);
    CHECK(
        result.err == base::Text(
                          "dtrun: --launcher local starts ranks on this host alone, but the hosts "
                          "are ",
                          hosts, "; --launcher ssh and --launcher mpirun reach others\n"));
  }
  const CommandResult result = test.Run({"-np", "2", "--mpi-args", "-q", "/bin/true"});
  CHECK(result.exit_code == 2);
  CHECK(
      result.err ==
      "dtrun: --mpi-args needs mpirun; expected no --mpi-args with --launcher local\n");
}

TEST_CASE("--dry-run shows dtrun_local and --check-build accepts a missing mpirun") {
  const LocalTest test;
  const CommandResult text = test.Run({"-np", "2", "--dry-run", "/bin/true"});
  CHECK_THAT(
      text.out, Contains("/dtrun_local 2 ") && Contains("/dtrun_rank +/bin/true\n") &&
                    Contains("rank 1 -> localhost"));
  const auto plan = ParseJson(test.Run({"-np", "2", "--dry-run", "--json", "-", "/bin/true"}).out);
  CHECK_THAT(plan["command"][0].get<std::string>(), Catch::EndsWith("/dtrun_local"));
  CHECK(plan["ranks"].size() == 2);
  const CommandResult build = test.Run({"--check-build"});
  CHECK(build.exit_code == 0);
  CHECK_THAT(build.out, Contains("[ ] mpirun: ") && Contains("[x] dtrun_local: /"));
}

TEST_CASE("variables of an outer mpirun do not reach the ranks") {
  LocalTest test;
  test.environment.insert(
      test.environment.end(),
      {{"OMPI_COMM_WORLD_RANK", "7"}, {"PMIX_RANK", "7"}, {"RANK", "7"}, {"WORLD_SIZE", "8"}});
  const CommandResult result = test.Run(
      {"-np", "1", "/bin/sh", "-c", "echo $RANK/$WORLD_SIZE $OMPI_COMM_WORLD_RANK $PMIX_RANK"});
  CHECK(result.out == "0/1\n");
}

TEST_CASE("a job with either launcher runs inside a job with the other launcher") {
  const DtrunTest test;
  const std::string inner = GENERATE(as<std::string>(), "local", "mpirun");
  const std::string outer = inner == "local" ? "mpirun" : "local";
  const CommandResult result = test.Run(
      {"--launcher", outer, "-np", "1", DtrunTest::Dtrun(), "--tag", "none", "--launcher", inner,
       "-np", "2", "sh", "-c", "echo $RANK/$WORLD_SIZE"});
  CHECK(result.exit_code == 0);
  CHECK(LineCount(result.out) == 2);
  CHECK_THAT(result.out, Contains("0/2\n") && Contains("1/2\n"));
}

// Starts the ranks 0 and 1 on this machine under another host name and with an empty environment,
// and rank 2 on this machine. Needs CanRename().
struct FarTest : DtrunTest {
  std::string shell = temp.Write(
      "shell",
      "#!/bin/bash\n"
      "exec env -i PATH=/usr/bin:/bin unshare -u sh -c 'hostname \"$0\"; sh -c \"exec $1\"; exit "
      "$?' \"$1\" "
      "\"${*:2}\"\n",
      0755);

  FarTest() {
    launcher = "ssh";
    environment = {{"OMPI_MCA_plm_rsh_agent", shell}};
  }

  Command LineOf(const std::string& script) const {
    return Line({"-H", "far:2,localhost:1", "sh", "-c", script});
  }
};

TEST_CASE("--launcher ssh gives each rank its number, its variables and the job's secret") {
  if (!CanRename()) return;
  FarTest test;
  const std::string odd = "a;b 'c' $(id) \n\t\xff", large(128 * 1024 - 10, 'x');
  test.environment.insert(
      test.environment.end(), {{"ODD", odd}, {"LARGE", large}, {"MY_TOKEN", "hush"}});
  const CommandResult result = Run(test.LineOf(
      "name=$(hostname); [ $name = far ] || name=here; "
      "printf '%s\n' \"$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $DTRUN_RANK $name "
      "$(wc -c <$DTRUN_JOB_SECRET_FILE) $(stat -c %a $DTRUN_JOB_SECRET_FILE)\"; "
      "[ $RANK = 0 ] && printf '%s|%s|%s' \"$ODD\" ${#LARGE} \"$MY_TOKEN\" >&2; true"));
  CHECK(result.exit_code == 0);
  Words lines = base::Split(result.out, '\n');
  std::sort(lines.begin(), lines.end());
  CHECK(
      lines == Words{"", "0/3 0/2 0 far 64 600", "1/3 1/2 1 far 64 600", "2/3 0/1 2 here 64 600"});
  CHECK(result.err == odd + "|" + std::to_string(large.size()) + "|");
}

TEST_CASE("under --launcher ssh a rank that fails on one host ends the ranks of the other") {
  if (!CanRename()) return;
  const FarTest test;
  const int failing = GENERATE(0, 2);
  const int code = GENERATE(9, 255);
  const CommandResult result = Run(test.LineOf(base::Text(
      "[ $RANK = ", failing, " ] || { trap '' TERM; sleep 600 & wait; wait; }; sleep 0.3; exit ",
      code)));
  CHECK(result.exit_code == code);
  CHECK_THAT(
      result.err, Catch::StartsWith(base::Text(
                      "dtrun: rank ", failing, failing == 0 ? " on far" : " on localhost",
                      " exited with code ", code, "\n")));
}

TEST_CASE("under --launcher ssh a lost dtrun_local or remote shell is named with its host") {
  if (!CanRename()) return;
  const FarTest test;
  // The parent of rank 0's wrapper is dtrun_local. Its parent stands for ssh.
  const auto [victim, code, message] = GENERATE(table<std::string, int, std::string>({
      {"$(up $PPID)", 70, "dtrun: dtrun_local on far was lost; its ranks were ended\n"},
      {"$(up $(up $PPID))", 69, "dtrun: the connection to far was lost; the ranks were ended\n"},
  }));
  const CommandResult result = Run(test.LineOf(
      "up() { ps -o ppid= -p $1 | tr -d ' '; }; "
      "[ $RANK = 0 ] && { sleep 0.5; kill -KILL " +
      victim + "; }; exec sleep 600"));
  CAPTURE(victim, result.err);
  CHECK(result.exit_code == code);
  CHECK_THAT(result.err, Contains(message));
}

TEST_CASE("after a failure a rank that ignores SIGTERM is ended too") {
  DtrunTest test{.launcher = "local"};
  const CommandResult result = test.Run(
      {"-np", "2", "sh", "-c",
       "[ $RANK = 0 ] && { trap '' TERM; : >$TMPDIR/deaf; while :; do sleep 1; done; }; "
       "while [ ! -e $TMPDIR/deaf ]; do :; done; rm $TMPDIR/deaf; exit 4"});
  CHECK(result.exit_code == 4);
  CHECK_THAT(result.err, Catch::StartsWith("dtrun: rank 1 on localhost exited with code 4\n"));
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("SIGUSR1 and SIGUSR2 to dtrun_local reach every rank") {
  const DtrunTest test{.launcher = "local"};
  const auto [signal, name] = GENERATE(std::pair(SIGUSR1, "USR1"), std::pair(SIGUSR2, "USR2"));
  Subprocess dtrun(test.Line(
      {"-np", "2", "perl", "-e",
       base::Text(
           "$| = 1; $SIG{", name, "} = sub { print \"heard\\n\"; exit 0 }; print \"ready\\n\"; ",
           "sleep 1 while 1")}));
  REQUIRE(dtrun.WaitForLines(2));
  kill(LocalEngineOf(dtrun.pid()), signal);
  const CommandResult result = dtrun.Wait();
  CHECK(result.exit_code == 0);
  CHECK(std::count(result.out.begin(), result.out.end(), 'h') == 2);
}

TEST_CASE("SIGTERM to dtrun_local alone is reported") {
  const DtrunTest test{.launcher = "local"};
  Subprocess dtrun(test.Line({"-np", "2", "sh", "-c", "echo ready; exec sleep 600"}));
  REQUIRE(dtrun.WaitForLines(2));
  kill(LocalEngineOf(dtrun.pid()), SIGTERM);
  const CommandResult result = dtrun.Wait();
  CHECK(result.exit_code == 70);
  CHECK(result.err == "dtrun: dtrun_local was killed by SIGTERM; its ranks were ended\n");
  CHECK(test.temp.Entries().empty());
}

}  // namespace
}  // namespace dtrun::testing
