// dtrun doctor on other hosts.

#include <catch2/catch.hpp>
#include <chrono>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

const std::string kDoctor = "$PWD/launcher/dtrun doctor ";
const std::string kProgram = " $PWD/examples/sgd";

// Runs `words` on h2, which has its own mounts.
std::string OnH2(const std::string& words) { return "ssh h2 '" + words + "'; "; }

// Checks that h2 is the only host with a problem, and has only one problem.
void CheckOneProblem(const CommandResult& result, const std::string& beginning) {
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 69);
  CHECK(result.err == "");
  CHECK_THAT(result.out, Contains("\nh1    ok "));
  CHECK_THAT(result.out, Contains("\nPROBLEM h2: " + beginning));
  CHECK(result.out.find("PROBLEM h") == result.out.rfind("PROBLEM h"));
  CHECK_THAT(result.out, Contains("\n1 of 2 hosts would stop a job: h2\n"));
}

TEST_CASE("doctor prints one line for each of four healthy hosts and leaves no process or file") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      kDoctor + "-H h1:1,h2:1,h3:1,h4:2" + kProgram +
          "; for h in h1 h2 h3 h4; do ssh $h 'pgrep -c dtrun_prob; ls $TMPDIR | wc -l'; done",
      {"--names", "h1,h2,h3,h4"}));
  CAPTURE(result.out, result.err);
  CHECK_THAT(result.out, Contains("\nAll 4 hosts are ready.\n0\n0\n0\n0\n0\n0\n0\n0\n"));
  for (const char* host : {"h1", "h2", "h3", "h4"})
    CHECK_THAT(result.out, Contains("\n" + std::string(host) + "    ok "));
}

TEST_CASE("doctor checks hosts from a machine that is not part of the job") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(kDoctor + "-H h2:1" + kProgram));
  CAPTURE(result.out);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("\nh2    ok ") && Contains("\nh1    ok     this host"));
}

TEST_CASE("doctor reports a host that refuses the user's ssh key") {
  if (Skipped()) return;
  CheckOneProblem(
      Run(ScriptOnHosts(
          "ssh-keygen -q -t ed25519 -N '' -f $TMPDIR/other; "
          "printf 'Host h2\\nIdentityFile %s/other\\nIdentitiesOnly yes\\n' $TMPDIR "
          ">$TMPDIR/config; mount --bind $TMPDIR/config /etc/ssh/ssh_config; "
          "printf 'GlobalKnownHostsFile /run/rig/known_hosts\\n' >>$TMPDIR/config; exec " +
          kDoctor + "-H h1:1,h2:1" + kProgram)),
      "ssh login: found root@h2: Permission denied (publickey");
}

TEST_CASE("doctor reports a host with an unknown host key and does not prompt") {
  if (Skipped()) return;
  CheckOneProblem(
      Run(ScriptOnHosts(
          "printf 'IdentityFile /run/rig/user_key\\nGlobalKnownHostsFile /dev/null\\n"
          "UserKnownHostsFile /dev/null\\n' >$TMPDIR/config; "
          "mount --bind $TMPDIR/config /etc/ssh/ssh_config; exec " +
          kDoctor + "-H h1:1,h2:1" + kProgram)),
      "ssh host key: found Host key verification failed.");
}

TEST_CASE("doctor distinguishes a missing sshd from an unreachable host") {
  if (Skipped()) return;
  CheckOneProblem(
      Run(ScriptOnHosts(kDoctor + "-H h1:1,h2:1 --ssh-port 7" + kProgram)), "ssh port: found 10.");
  const CommandResult refused =
      Run(ScriptOnHosts(kDoctor + "-H h1:1,h2:1 --ssh-port 7" + kProgram));
  CHECK_THAT(refused.out, Contains(" port 7: Connection refused;"));
  const CommandResult unplugged = Run(ScriptOnHosts(
      "nsenter --net=/run/rig/h2/net ip link set eth0 down; exec " + kDoctor +
      "-H h1:1,h2:1 --start-timeout 2" + kProgram));
  CheckOneProblem(unplugged, "ssh port: found 10.");
}

TEST_CASE("doctor reports a host that is off and still checks the other hosts") {
  if (Skipped()) return;
  CheckOneProblem(
      Run(ScriptOnHosts("ssh h2 kill 1 2>/dev/null; exec " + kDoctor + "-H h1:1,h2:1" + kProgram)),
      "ssh port: found 10.");
}

TEST_CASE("a host that stops answering does not block doctor") {
  if (Skipped()) return;
  // The port accepts connections and sends no data.
  Command command = ScriptOnHosts(
      "nsenter --net=/run/rig/h2/net python3 -c 'import socket, time; s = socket.socket(); "
      "s.bind((\"\", 2222)); s.listen(); print(\"up\", flush=True); time.sleep(60)' "
      ">$TMPDIR/out & until [ -s $TMPDIR/out ]; do sleep 0.05; done; exec " +
      kDoctor + "-H h1:1,h2:1 --ssh-port 2222 --start-timeout 2" + kProgram);
  command.timeout = std::chrono::seconds(30);
  const CommandResult result = Run(command);
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == 69);
  CHECK_THAT(result.out, Contains("PROBLEM h2: ssh") && Contains("\nh1    ok "));
}

TEST_CASE("doctor reports a program that is missing or different on one host") {
  if (Skipped()) return;
  // Each host has its own $TMPDIR.
  const std::string copy = "cp /bin/true $TMPDIR/train; ";
  const std::string look = "exec " + kDoctor + "-H h1:1,h2:1 $TMPDIR/train";
  CheckOneProblem(
      Run(ScriptOnHosts(copy + look)), "program: found /run/tmp/train: No such file or directory");
  CheckOneProblem(
      Run(ScriptOnHosts(copy + OnH2("cp /bin/false $TMPDIR/train") + look)),
      "program: found /run/tmp/train with SHA-256 ");
  CheckOneProblem(
      Run(ScriptOnHosts(copy + OnH2(copy + "chmod -x $TMPDIR/train") + look)),
      "program: found /run/tmp/train: permission denied");
}

TEST_CASE("doctor reports an installation that is missing or incomplete or of another version") {
  if (Skipped()) return;
  const std::string copy = "mkdir $TMPDIR/bin; cp -L launcher/dtrun* $TMPDIR/bin; ";
  const std::string look = "exec $TMPDIR/bin/dtrun doctor -H h1:1,h2:1" + kProgram;
  CheckOneProblem(Run(ScriptOnHosts(copy + look)), "dtrun: found ");
  const CommandResult missing = Run(ScriptOnHosts(copy + look));
  CHECK_THAT(missing.out, Contains("expected dtrun ") && Contains("with /run/tmp/bin/dtrun_probe"));
  CheckOneProblem(
      Run(ScriptOnHosts(
          copy +
          OnH2("mkdir $TMPDIR/bin; printf \"#!/bin/sh\\necho dtrun_probe 0.0.1\\n\" "
               ">$TMPDIR/bin/dtrun_probe; chmod +x $TMPDIR/bin/dtrun_probe") +
          look)),
      "dtrun: found version 0.0.1; expected version ");
  CheckOneProblem(
      Run(ScriptOnHosts(
          copy + OnH2("mkdir $TMPDIR/bin") +
          "ssh h2 'cat >$TMPDIR/bin/dtrun_probe; chmod +x $TMPDIR/bin/dtrun_probe' "
          "<$TMPDIR/bin/dtrun_probe; " +
          look)),
      "dtrun: found dtrun_rank and dtrun_agent is missing");
}

TEST_CASE("doctor reports an Open MPI of another version on one host") {
  if (Skipped()) return;
  const std::string look = "exec " + kDoctor + "-H h1:1,h2:1" + kProgram;
  CheckOneProblem(
      Run(ScriptOnHosts(
          OnH2("printf \"#!/bin/sh\\necho \\\"mpirun (Open MPI) 4.0.9\\\"\\n\" >$TMPDIR/mpirun; "
               "chmod +x $TMPDIR/mpirun; mount --bind $TMPDIR/mpirun $(readlink -f "
               "$(which mpirun))") +
          look)),
      "Open MPI: found mpirun (Open MPI) 4.0.9; expected mpirun (Open MPI) ");
}

TEST_CASE("doctor reports a startup file that writes to stdout and would break dtrun's messages") {
  if (Skipped()) return;
  CheckOneProblem(
      Run(ScriptOnHosts(
          OnH2("echo echo Welcome >$TMPDIR/bashrc; mount --bind $TMPDIR/bashrc /etc/bash.bashrc") +
          "exec " + kDoctor + "-H h1:1,h2:1" + kProgram)),
      "shell: found Welcome on stdout;");
}

}  // namespace
