// Jobs of Grid Engine: a real Grid Engine serves the hosts.

#include <catch2/catch.hpp>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

CommandResult InGridEngine(const std::string& script, const Words& hosts = {"h1:2", "h2:2"}) {
  Words command = {"tests/multihost/with_grid_engine"};
  command.insert(command.end(), hosts.begin(), hosts.end());
  command.insert(command.end(), {"--", "sh", "-c", script});
  return Run(OnHosts(command, {"--names", "h1,h2"}));
}

// Whether this machine has no Grid Engine or cannot make hosts. If so, each call prints the reason.
bool NoGridEngine() {
  if (Skipped()) return true;
  static const CommandResult result = InGridEngine("true");
  return LacksSomething(result);
}

// Shell functions. `submit SLOTS COMMAND` submits a job script and prints the job's number, `ended
// JOB` waits for its end and prints its output and exit code. In a job, ssh fails.
const std::string kJobShell =
    kBlockSsh + kLeft +
    "submit() { slots=$1; shift; "
    "printf '#!/bin/bash\\nexport OMPI_ALLOW_RUN_AS_ROOT=1 PATH=/run/no_ssh:%s\\n%s\\necho code "
    "$?\\n' \"$PATH\" \"$*\" "
    ">/run/job; qsub -terse -cwd -j y -o /run/out -pe spread $slots /run/job; }; "
    "ended() { while qstat -j $1 >/dev/null 2>&1; do sleep 0.1; done; cat /run/out; }; ";

TEST_CASE("a job of Grid Engine starts ranks on all its hosts through qrsh, without ssh and MPI") {
  if (NoGridEngine()) return;
  const CommandResult result = InGridEngine(
      kJobShell +
      "ended $(submit 4 launcher/dtrun --launcher qrsh --tag none tests/ranks/conformance)");
  CAPTURE(result.err);
  CHECK(result.out == "hierarchical: many checks, 0 wrong\ncode 0\n");
}

TEST_CASE("the slots that Grid Engine has granted are the ranks of the job") {
  if (NoGridEngine()) return;
  const CommandResult result = InGridEngine(
      kJobShell +
          "ended $(submit 3 \"launcher/dtrun --launcher qrsh --tag none sh -c 'echo \\$RANK of "
          "\\$WORLD_SIZE on \\$(hostname)' | sort\")",
      {"h1:1", "h2:3"});
  CAPTURE(result.err);
  CHECK(result.out == "0 of 3 on h1\n1 of 3 on h2\n2 of 3 on h2\ncode 0\n");
}

TEST_CASE("under Grid Engine a killed rank is named and the job ends with its code") {
  if (NoGridEngine()) return;
  const CommandResult result = InGridEngine(
      kJobShell +
      "ended $(submit 4 \"launcher/dtrun --launcher qrsh sh -c '[ \\$RANK = 3 ] && kill -9 \\$\\$; "
      "sleep 60'\"); soon_none");
  CAPTURE(result.err);
  CHECK_THAT(
      result.out,
      Contains("dtrun: rank 3 on h2 was killed by SIGKILL\n") && EndsWith("code 137\n"));
}

TEST_CASE("qdel and a killed dtrun leave nothing on any host of Grid Engine") {
  if (NoGridEngine()) return;
  const std::string fault = GENERATE("qdel $job", "pkill -KILL -f 'launcher/dtrun --launcher'");
  const CommandResult result = InGridEngine(
      kJobShell +
      "job=$(submit 4 exec launcher/dtrun --launcher qrsh tests/ranks/summing 100000); "
      "until [ $(grep -cs stdout /run/out) -ge 4 ]; do sleep 0.1; done; left | grep -c "
      "tests/ranks/summing; " +
      fault + " >/dev/null; soon_none");
  CAPTURE(fault, result.err);
  CHECK_THAT(result.out, EndsWith("\n") && !Contains("tests/ranks"));
}

TEST_CASE("a host with one slot has no room for the tasks of qrsh, which dtrun says at once") {
  if (NoGridEngine()) return;
  const CommandResult result = InGridEngine(
      kJobShell + "ended $(submit 2 launcher/dtrun --launcher qrsh true)", {"h1:1", "h2:1"});
  CHECK_THAT(
      result.out, Contains("dtrun: --launcher qrsh needs two slots on each other host") &&
                      (Contains("h1 has one") || Contains("h2 has one")) && EndsWith("code 2\n"));
}

}  // namespace
