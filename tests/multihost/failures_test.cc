// What goes wrong on other hosts, and what dtrun says of it.

#include <catch2/catch.hpp>
#include <chrono>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

const std::string kJob = "$PWD/launcher/dtrun --tag none -H h1:1,h2:1 ";

TEST_CASE("a program that is missing on one host is named with it, before any rank starts") {
  if (Skipped()) return;
  // Each host has a $TMPDIR of its own.
  const CommandResult result = Run(
      ScriptOnHosts("cp /bin/echo $TMPDIR/only-here; exec " + kJob + "$TMPDIR/only-here started"));
  CHECK(result.exit_code == 127);
  CHECK(result.out == "");
  CHECK_THAT(result.err, Contains("dtrun: h2: ") && Contains("only-here"));
}

TEST_CASE("a host that lets nobody in is named, with what ssh says") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "ssh h2 'kill $(cat /run/sshd.pid 2>/dev/null || pgrep -o sshd)' 2>/dev/null; sleep 0.5; "
      "exec " +
      kJob + "echo started"));
  CHECK(result.exit_code == 69);
  CHECK(result.out == "");
  CHECK_THAT(result.err, Contains("host h2 cannot be used: ") && Contains("refused"));
}

TEST_CASE("a rank that is killed on another host is named with host and signal") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "exec " + kJob +
      "sh -c '[ $(hostname) = h2 ] && { echo out of luck >&2; kill -SEGV $$; }; "
      "exec sleep 50'"));
  CHECK(result.exit_code == 139);
  CHECK_THAT(result.err, Contains("out of luck\n"));
  CHECK_THAT(result.err, Contains("dtrun: rank 1 on h2 was killed by SIGSEGV\n"));
}

TEST_CASE("what every rank was doing is told of ranks on other hosts too") {
  if (Skipped()) return;
  const CommandResult result = Run(OnHosts(
      {"launcher/dtrun", "--tag", "none", "-H", "h1:1,h2:2", "tests/ranks/in_vain", "killed"}));
  CHECK(result.exit_code == 137);
  CHECK_THAT(
      result.err, Contains("dtrun: rank 1 on h2 was killed by SIGKILL") &&
                      Contains("dtrun: rank 1 is 1 collective behind on world: it last finished "
                               "#1, barrier; ranks 0 and 2 wait in #2, all_reduce"));
}

TEST_CASE("a host that is switched off ends the job") {
  if (Skipped()) return;
  Command command = ScriptOnHosts("(sleep 3; ssh h2 kill 1) & exec " + kJob + "sleep 600");
  command.timeout = std::chrono::seconds(60);
  const CommandResult result = Run(command);
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code != 0);
  CHECK_THAT(result.err, Contains("h2"));
}

TEST_CASE("killing dtrun, or interrupting it, leaves nothing on any host") {
  if (Skipped()) return;
  const std::string signal = GENERATE("KILL", "INT", "TERM");
  const CommandResult result = Run(ScriptOnHosts(
      kJob +
      "bash -c 'exec -a sleep-of-job sleep 600' & sleep 3; "
      "for h in h1 h2; do ssh $h 'pgrep -fc \"^sleep-of-jo[b]\"'; done; kill -" +
      signal +
      " $!; sleep 2; for h in h1 h2; do ssh $h 'pgrep -fc \"^sleep-of-jo[b]\"'; done; "
      "ssh h1 'ls -d $TMPDIR/dtrun.* /dev/shm/dtrun.* 2>/dev/null | wc -l'; "
      "ssh h2 'ls -d $TMPDIR/dtrun.* /dev/shm/dtrun.* 2>/dev/null | wc -l'"));
  CAPTURE(signal, result.err);
  CHECK(result.out == "1\n1\n0\n0\n0\n0\n");
}

TEST_CASE("a killed daemon of Open MPI on another host ends the job, and the host is named") {
  if (Skipped()) return;
  const CommandResult result =
      Run(ScriptOnHosts("(sleep 3; ssh h2 pkill -KILL orted) & exec " + kJob + "sleep 600"));
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code != 0);
  CHECK_THAT(result.err, Contains("h2"));
}

}  // namespace
