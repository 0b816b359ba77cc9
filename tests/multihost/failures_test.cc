// Failures on other hosts, and the messages of dtrun about them.

#include <catch2/catch.hpp>
#include <chrono>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

const std::string kJob = "$PWD/launcher/dtrun --tag none -H h1:1,h2:1 ";

TEST_CASE("a program missing on one host is reported with the host before any rank starts") {
  if (Skipped()) return;
  // Each host has its own $TMPDIR.
  const CommandResult result = Run(
      ScriptOnHosts("cp /bin/echo $TMPDIR/only-here; exec " + kJob + "$TMPDIR/only-here started"));
  CHECK(result.exit_code == 127);
  CHECK(result.out == "");
  CHECK_THAT(result.err, Contains("dtrun: h2: ") && Contains("only-here"));
}

TEST_CASE("a program that cannot be run on one host is reported with the host and exit code 126") {
  if (Skipped()) return;
  const auto [change, message] = GENERATE(table<std::string, std::string>({
      {"chmod 644 $TMPDIR/program", "program: permission denied\n"},
      {"rm $TMPDIR/program; mkdir $TMPDIR/program", "program: it is a folder\n"},
      {"sed -i s/libc.so.6/libq.so.6/g $TMPDIR/program",
       "dtrun: rank 1 on h2 could not run its program: a shared library was not found"},
  }));
  const CommandResult result = Run(ScriptOnHosts(
      "for h in h1 h2; do ssh $h cp /bin/echo $TMPDIR/program; done; ssh h2 '" + change +
      "'; exec " + kJob + "$TMPDIR/program started"));
  CAPTURE(change);
  CHECK(result.exit_code == 126);
  CHECK_THAT(result.err, Contains(message) && Contains("h2"));
  // Only the loader looks for libraries, when the rank starts.
  if (change.find("libq") == std::string::npos) CHECK(result.out == "");
}

TEST_CASE("a host with an unknown user key or host key is reported and ssh does not prompt") {
  if (Skipped()) return;
  const auto [change, message] = GENERATE(table<std::string, std::string>({
      {"s|user_key|other_key|", "root@h2: Permission denied (publickey"},
      {"s|/run/rig/known_hosts|/dev/null|", "Host key verification failed.\n"},
  }));
  const CommandResult result = Run(ScriptOnHosts(
      "ssh-keygen -q -t ed25519 -N '' -f /run/rig/other_key; settings=$(sed '" + change +
      "' /run/rig/ssh_config); echo \"$settings\" >/run/rig/ssh_config; exec " + kJob +
      "echo started"));
  CHECK(result.exit_code == 69);
  CHECK(result.out == "");
  CHECK_THAT(result.err, Contains("dtrun: host h2 cannot be used: " + message));
}

TEST_CASE("a host without sshd is reported with the error from ssh") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "ssh h2 'kill $(cat /run/sshd.pid 2>/dev/null || pgrep -o sshd)' 2>/dev/null; sleep 0.5; "
      "exec " +
      kJob + "echo started"));
  CHECK(result.exit_code == 69);
  CHECK(result.out == "");
  CHECK_THAT(result.err, Contains("host h2 cannot be used: ") && Contains("refused"));
}

TEST_CASE("a host with a shell that prints at login is reported with the printed text") {
  if (Skipped()) return;
  const std::string text = GENERATE("Welcome to $host", "hi", "");
  const CommandResult result = Run(ScriptOnHosts(
      "printf '#!/bin/sh\\nhost=$1; shift; exec ssh $host \"echo " + text +
      "; $*\"\\n' >/run/shell; chmod +x /run/shell; OMPI_MCA_plm_rsh_agent=/run/shell exec " +
      kJob + "echo started"));
  CAPTURE(text);
  CHECK(result.exit_code == 69);
  CHECK(result.out == "");
  const std::string shown = text.size() > 2 ? "the text 'Welcome to h2'; expected a message" : "";
  CHECK_THAT(
      result.err, Contains("dtrun: host h2 cannot be used: found " + shown) &&
                      Contains("(does its shell print when somebody logs in?)\n"));
}

TEST_CASE("only the host without Open MPI is reported") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "ssh h2 mount --bind /dev/null $(readlink -f $(command -v orted)); exec launcher/dtrun "
      "-H h1:1,h2:1,h3:1 echo started",
      {"--names", "h1,h2,h3"}));
  CHECK(result.exit_code == 69);
  CHECK(result.out == "");
  CHECK_THAT(
      result.err,
      Contains("dtrun: h2: cannot run Open MPI's /usr/bin/orted: Permission denied; "
               "expected Open MPI at the same path as on the host where the job was started\n"));
}

TEST_CASE("a host with a hanging daemon of Open MPI is reported after --start-timeout") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "ssh h2 'printf \"#!/bin/sh\\nexec sleep 600\\n\" >$TMPDIR/hangs; chmod +x $TMPDIR/hangs; "
      "mount --bind $TMPDIR/hangs $(readlink -f $(command -v orted))'; exec launcher/dtrun "
      "--start-timeout 5 -H h1:1,h2:1,h3:1 echo started",
      {"--names", "h1,h2,h3"}));
  CHECK(result.exit_code == 69);
  CHECK(result.out == "");
  CHECK_THAT(
      result.err, Contains("dtrun: not all ranks had started after 5 s (--start-timeout); mpirun "
                           "has no connection to its daemon on h2; --verbose shows Open MPI's "
                           "messages\n"));
}

TEST_CASE("a rank killed on another host is reported with the host and the signal") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "exec " + kJob +
      "sh -c '[ $(hostname) = h2 ] && { echo out of luck >&2; kill -SEGV $$; }; "
      "exec sleep 50'"));
  CHECK(result.exit_code == 139);
  CHECK_THAT(result.err, Contains("out of luck\n"));
  CHECK_THAT(result.err, Contains("dtrun: rank 1 on h2 was killed by SIGSEGV\n"));
}

TEST_CASE("after a failure dtrun reports the last collective of ranks on other hosts too") {
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

TEST_CASE("a host that receives but cannot send is reported after --host-timeout") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      kJob +
      "--host-timeout 4 --stall-timeout 60 sh -c 'echo up; sleep 600' >/run/out & "
      "until [ \"$(grep -c up /run/out)\" = 2 ]; do sleep 0.05; done; "
      "nsenter --net=/run/rig/h2/net ip neigh replace $(getent hosts h1 | cut -d' ' -f1) "
      "lladdr 02:00:00:00:00:99 nud permanent dev eth0; wait $!; echo code $?"));
  CHECK(result.out == "code 69\n");
  CHECK_THAT(result.err, Contains("dtrun: host h2 was lost: no message from the host for 4 s\n"));
}

TEST_CASE("a killed ssh of dtrun or mpirun is reported as a lost host or connection") {
  if (Skipped()) return;
  const auto [killed, message] = GENERATE(table<std::string, std::string>({
      {"*dtrun_agent*",
       "dtrun: host h2 was lost: its agent has ended, or the connection to the agent\n"},
      {"*dtrun_daemon*", "dtrun: the connection to h2 was lost; the ranks were ended\n"},
  }));
  CAPTURE(killed);
  const CommandResult result = Run(ScriptOnHosts(
      kJob +
      "sh -c 'echo up; exec sleep 60' >/run/up & job=$!; "
      "until [ $(grep -c up /run/up) = 2 ]; do sleep 0.05; done; "
      "for p in $(pgrep -x ssh); do case $(ps -o args= -p $p) in " +
      killed + ") kill -9 $p;; esac; done; wait $job"));
  CHECK(result.exit_code == 69);
  CHECK_THAT(result.err, Contains(message));
}

TEST_CASE("killing or interrupting dtrun leaves no process and no file on any host") {
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

TEST_CASE(
    "a process that a rank leaves on any host is ended even with its own session and environment") {
  if (Skipped()) return;
  const std::string left = "env -i setsid bash -c \"exec -a left-over sleep 600\" & ";
  const std::string counts = "for h in h1 h2; do ssh $h 'pgrep -fc \"^left-ove[r]\"'; done; ";
  const CommandResult ended = Run(ScriptOnHosts(kJob + "sh -c '" + left + "sleep 0.5'; " + counts));
  CHECK(ended.out == "0\n0\n");
  const CommandResult killed = Run(ScriptOnHosts(
      kJob + "sh -c '" + left + "sleep 600' & sleep 3; " + counts + "kill -KILL $!; sleep 2; " +
      counts));
  CHECK(killed.out == "1\n1\n0\n0\n");
}

TEST_CASE("a killed Open MPI daemon on another host is named and the job ends without leftovers") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      kJob +
      "bash -c 'echo up; exec -a sleep-of-job sleep 600' >/run/out & "
      "until [ \"$(grep -c up /run/out)\" = 2 ]; do sleep 0.05; done; ssh h2 pkill -KILL orted; "
      "wait $!; echo code $?; "
      "for h in h1 h2; do ssh $h 'pgrep -fc \"^sleep-of-jo[b]\"; find $TMPDIR /dev/shm -mindepth "
      "1'; "
      "done"));
  CHECK(result.out == "code 70\n0\n0\n");
  CHECK_THAT(
      result.err, Contains("dtrun: Open MPI's daemon on h2 was lost; its ranks were ended\n"));
}

}  // namespace
