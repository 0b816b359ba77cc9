// Lost ranks of several hosts that are started again (--restarts). No host has Open MPI's launcher.

#include <catch2/catch.hpp>
#include <string>

#include "tests/multihost/rig.h"

namespace dtrun::testing {
namespace {

// Runs a job of `steps` steps on two hosts, and `faults` meanwhile. The script has a function
// await STEP and a function process RANK.
CommandResult ElasticJob(
    int steps, const std::string& faults, const std::string& options = "",
    const std::string& hosts = "h1:2,h2:2") {
  const std::string script =
      "work=$(mktemp -d /var/tmp/elastic.XXXXXX) && touch $work/slow || exit 1\n"
      "await() {\n"
      "  step=\n"
      "  while [ \"${step:-0}\" -lt $1 ]; do sleep 0.02; step=$(cat $work/step 2>/dev/null); done\n"
      "}\n"
      "process() { cat $work/pid.$1; }\n"
      "launcher/dtrun --launcher ssh --tag none -np 4 -H " +
      hosts + " " + options + " tests/ranks/elastic " + std::to_string(steps) +
      " $work &\njob=$!\n" + faults + "\nwait $job; code=$?; rm -rf $work; exit $code\n";
  return Run(ScriptOnHosts(script, {"--names", "h1,h2,h3"}));
}

const std::string& Undisturbed() {
  static const std::string result = ElasticJob(200, ":").out;
  return result;
}

TEST_CASE("a rank that is killed on another host is started again there") {
  if (Skipped()) return;
  CHECK(Undisturbed().find("200 steps, digest ") == 0);
  CHECK(Undisturbed().find("each example 4 times\n") != std::string::npos);
  const std::string rank = GENERATE("0", "3");
  const bool wrapper = GENERATE(false, true);
  const std::string host = rank == "0" ? "h1" : "h2";
  const std::string victim = wrapper ? "$(ssh " + host + " ps -o ppid= $(process " + rank + "))"
                                     : "$(process " + rank + ")";
  const CommandResult result =
      ElasticJob(200, "await 40; ssh " + host + " kill -KILL " + victim, "--restarts 5");
  CAPTURE(rank, wrapper, result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
  CHECK(result.err.find("dtrun: rank " + rank + " on " + host + " was killed ") == 0);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
}

TEST_CASE("ranks that are killed on both hosts, again and again, lose no step") {
  if (Skipped()) return;
  const CommandResult result = ElasticJob(
      200,
      "await 20; ssh h2 kill -KILL $(process 2) & kill -KILL $(process 1)\n"
      "await 60; kill -KILL $(process 0)\n"
      "sleep 0.1; ssh h2 kill -KILL $(process 3)\n"
      "await 120; ssh h2 kill -KILL $(process 2) $(process 3)\n",
      "--restarts 50");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
}

TEST_CASE("a lost host ends a job whose ranks are started again") {
  if (Skipped()) return;
  const CommandResult result = ElasticJob(
      1000, "await 20; nsenter --net=/run/rig/h2/net ip link set eth0 down",
      "--restarts 5 --host-timeout 4");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 69);
  CHECK(result.err.find("dtrun: host h2 was lost: ") != std::string::npos);
}

TEST_CASE("a spare host takes the ranks of a lost host") {
  if (Skipped()) return;
  const std::string fault = GENERATE(
      as<std::string>(), "nsenter --net=/run/rig/h2/net ip link set eth0 down",
      "ssh h2 pkill -KILL dtrun_agent", "ssh h2 kill -KILL -1");
  const CommandResult result =
      ElasticJob(200, "await 40\n" + fault, "--restarts 5 --host-timeout 4", "h1:2,h2:2,h3:2");
  CAPTURE(fault, result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
  CHECK(result.err.find("dtrun: host h2 was lost: ") != std::string::npos);
  CHECK(result.err.find("; spare host h3 takes its ranks\n") != std::string::npos);
  CHECK(result.err.find("dtrun: all 4 ranks go on, ") != std::string::npos);
}

TEST_CASE("the ranks of the first host move, and the others meet at the new address") {
  if (Skipped()) return;
  const CommandResult result =
      ElasticJob(200, "await 40; ssh h2 pkill -KILL dtrun_agent", "--restarts 5", "h2:2,h3:2,h1:2");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
  CHECK(result.err.find("; spare host h1 takes its ranks\n") != std::string::npos);
}

TEST_CASE("the loss of a spare host is reported and the job goes on") {
  if (Skipped()) return;
  const CommandResult result =
      ElasticJob(200, "await 40; ssh h3 pkill -KILL dtrun_agent", "--restarts 5", "h1:2,h2:2,h3:2");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == Undisturbed());
  CHECK(result.err.find("dtrun: host h3 was lost: ") != std::string::npos);
  CHECK(result.err.find("; the host was a spare\n") != std::string::npos);
}

}  // namespace
}  // namespace dtrun::testing
