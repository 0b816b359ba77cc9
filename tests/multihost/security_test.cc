// A job over several hosts as other users and the network see it: docs/reference/security.md.

#include <catch2/catch.hpp>
#include <string>

#include "tests/multihost/rig.h"
#include "tests/support/python.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

// Runs `look` on each host while both ranks of a job run, and returns its output. Each rank makes a
// file in $TMPDIR, and ends when the file is removed.
CommandResult WhileAJobRuns(const std::string& look) {
  return Run(ScriptOnHosts(
      "export MY_TOKEN=hush-a1b2 OTHER_TOKEN=hush-c3d4 PLAIN=plain-e5f6; "
      "$PWD/launcher/dtrun --tag none -H h1:1,h2:1 -x MY_TOKEN sh -c '"
      "touch $TMPDIR/running; while [ -e $TMPDIR/running ]; do sleep 0.05; done' & "
      "for h in h1 h2; do ssh $h 'until [ -e $TMPDIR/running ]; do sleep 0.05; done'; done; "
      "for h in h1 h2; do ssh $h bash -s <<'LOOK'\n" +
      look +
      "\nLOOK\n"
      "done; for h in h1 h2; do ssh $h 'rm $TMPDIR/running'; done; wait $!"));
}

TEST_CASE("no command line on any host contains the value of a variable") {
  if (Skipped()) return;
  const CommandResult result = WhileAJobRuns(
      "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done | "
      "grep -E '^[^ ]*(/dtrun|mpirun|orted|ssh|dtrun_agent|dtrun_rank) '");
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("mpirun ") && Contains("orted ") && Contains("dtrun_rank "));
  CHECK_THAT(result.out, Contains("-x MY_TOKEN") && Contains("-x PLAIN"));
  CHECK_THAT(result.out, !Contains("OTHER_TOKEN"));
  for (const char* value : {"hush-a1b2", "hush-c3d4", "plain-e5f6"})
    CHECK_THAT(result.out, !Contains(value));
}

TEST_CASE("every ssh runs without prompts and forwarding and keeps the user's host key check") {
  if (Skipped()) return;
  const CommandResult result = WhileAJobRuns(
      "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done | "
      "grep -E '^[^ ]*ssh .* h2 .*(dtrun_agent|orted)' | sed -E 's/ h2 .*//' | LC_ALL=C sort");
  CAPTURE(result.out, result.err);
  // The ssh of mpirun, then the ssh of dtrun.
  CHECK(
      result.out ==
      "/usr/bin/ssh -x -x -a -o BatchMode=yes -o ConnectTimeout=60\n"
      "ssh -x -a -o BatchMode=yes -o ConnectTimeout=60 --\n");
}

TEST_CASE("of all processes of a job only those of Open MPI listen on the network") {
  if (Skipped()) return;
  const CommandResult result = WhileAJobRuns(
      "ss -Hltnp | sed -E 's/.*users:\\(\\(\"([^\"]*)\".*/\\1/' | sort -u | tr '\\n' ' '; "
      "ss -Hlun | wc -l");
  CAPTURE(result.out, result.err);
  CHECK(result.out == "mpirun sshd 0\norted sshd 0\n");
}

// The listening processes of a host, without sshd: "mpirun 127.0.0.1;mpirun own;". "own" is the
// address of eth0.
const std::string kListeners =
    "ss -Hltnp | grep -v sshd | "
    "sed -E \"s/^\\S+ +\\S+ +\\S+ +(.*):[0-9]+ .*users:\\(\\(.([^,]*).,.*/\\2 \\1/; "
    "s/ $(ip -4 -o address show eth0 | awk '{print $4}' | cut -d/ -f1)/ own/\" | "
    "sort -u | tr '\\n' ';'; echo; ";

// Runs a long job of a dtrun program, and meanwhile `look` on each of `hosts`.
CommandResult WhileRanksCompute(
    const std::string& options, const std::string& hosts, const std::string& look,
    const std::string& before = "") {
  return Run(ScriptOnHosts(
      before + "launcher/dtrun --tag none " + options +
          " tests/ranks/summing 2000 >$TMPDIR/out & "
          "until [ \"$(wc -l <$TMPDIR/out)\" -ge 2 ]; do sleep 0.1; done; sleep 0.5; for h in " +
          hosts + "; do ssh $h bash -s <<'LOOK'\n" + look + "\nLOOK\ndone; kill $!; wait $!; true",
      {"--names", "h1,h2,h3", "--nics", "eth0,eth1"}));
}

TEST_CASE("a job on one host listens only on loopback or not at all") {
  if (Skipped()) return;
  const auto [options, listeners] = GENERATE(table<std::string, std::string>({
      {"-np 2", "mpirun 127.0.0.1;\n"},
      {"-H h1:2", "mpirun 127.0.0.1;\n"},
      {"-np 2 --launcher local", "\n"},
  }));
  const CommandResult result = WhileRanksCompute(options, "h1", kListeners);
  CAPTURE(options, result.err);
  CHECK(result.out == listeners);
}

TEST_CASE("a job on three hosts listens only in its own network") {
  if (Skipped()) return;
  // Tries every listening port at the host's address in each of its networks.
  const std::string try_ports =
      "for port in $(ss -Hltnp | grep -v sshd | grep -v 127.0.0.1 | sed -E "
      "'s/^\\S+ +\\S+ +\\S+ +\\S*:([0-9]+) .*/\\1/' | sort -u); do for nic in eth0 eth1; do "
      "a=$(ip -4 -o address show $nic | awk '{print $4}' | cut -d/ -f1); "
      "timeout 0.5 bash -c \"</dev/tcp/$a/$port\" 2>/dev/null && echo $nic; done; done | "
      "sort | uniq -c | awk '{print $2, $1}'";
  const CommandResult result =
      WhileRanksCompute("-H h1:1,h2:1,h3:1", "h1 h2 h3", kListeners + try_ports);
  CAPTURE(result.err);
  // Open MPI gives a rank one IPv4 and one IPv6 socket. The IPv6 socket accepts no connections.
  const std::string ranks = "summing 0.0.0.0;summing [::];summing own;\neth0 3\n";
  CHECK(
      result.out == "mpirun 127.0.0.1;mpirun own;" + ranks + "orted 127.0.0.1;orted own;" + ranks +
                        "orted 127.0.0.1;orted own;" + ranks);
}

TEST_CASE("prterun and prted of Open MPI 5 listen only on loopback and in the job's network") {
  if (Skipped()) return;
  const std::string open_mpi = FullFolder("mpi/open_mpi");
  if (open_mpi.empty()) return;
  const CommandResult result = WhileRanksCompute(
      "-H h1:1,h2:1,h3:1", "h1 h3", kListeners, "PATH=" + open_mpi + "/bin:$PATH; ");
  CAPTURE(result.err);
  const std::string ranks = "summing 0.0.0.0;summing [::];summing own;\n";
  CHECK(
      result.out ==
      "prterun 127.0.0.1;prterun own;" + ranks + "prted 127.0.0.1;prted own;" + ranks);
}

TEST_CASE("a job listens only in the network of --network-interfaces") {
  if (Skipped()) return;
  const CommandResult result = WhileRanksCompute(
      "-H h1:1,h2:1 --network-interfaces eth1", "h1 h2",
      "ss -Hltnp | grep -E 'mpirun|orted' | grep -v 127.0.0.1 | grep -c \" "
      "$(ip -4 -o address show eth1 | awk '{print $4}' | cut -d/ -f1):\"; "
      "ss -Hltnp | grep -E 'mpirun|orted' | grep -vc 127.0.0.1");
  CAPTURE(result.err);
  CHECK(result.out == "1\n1\n1\n1\n");
}

TEST_CASE("a user's choice of Open MPI networks or transports is kept") {
  if (Skipped()) return;
  const auto [arguments, listener] = GENERATE(table<std::string, std::string>({
      {"--mca btl_tcp_if_include eth0", "mpirun 0.0.0.0;"},
      {"--mca btl tcp,self", "summing 0.0.0.0;"},
  }));
  const CommandResult result =
      WhileRanksCompute("-np 2 --mpi-args '" + arguments + "'", "h1", kListeners);
  CAPTURE(arguments, result.err);
  CHECK_THAT(result.out, Contains(listener));
}

// On h2, a login shell has a $TMPDIR that the shell of h1 does not know.
const std::string kOtherFolderOnH2 =
    "printf '#!/bin/sh\\nhost=$1; shift; exec ssh $host \"export TMPDIR=/dev/shm; $*\"\\n' "
    ">/run/shell; chmod +x /run/shell; export OMPI_MCA_plm_rsh_agent=/run/shell; ";

TEST_CASE("files of another user at the paths of Open MPI do no harm") {
  if (Skipped()) return;
  const std::string attack = GENERATE(
      "touch $TMPDIR/ompi.h2.0",
      "mkdir -m 777 $TMPDIR/his; ln -s $TMPDIR/his $TMPDIR/ompi.h2.0; touch $TMPDIR/his/jf.0");
  const CommandResult result = Run(ScriptOnHosts(
      "ssh h2 setpriv --reuid 65534 --regid 65534 --clear-groups sh -c \"'" + attack +
      "'\"; launcher/dtrun --tag none -H h1:1,h2:1 tests/ranks/summing 20; echo code $?; "
      "ssh h2 'find $TMPDIR -mindepth 1 | sort'"));
  CAPTURE(attack, result.err);
  CHECK_THAT(result.out, Contains("sum 120.0\ncode 0\n"));
  CHECK_THAT(
      result.out, Catch::EndsWith(
                      attack.starts_with("touch") ? "\n/run/tmp/ompi.h2.0\n"
                                                  : "\n/run/tmp/his\n/run/tmp/his/jf.0\n"
                                                    "/run/tmp/ompi.h2.0\n"));
}

TEST_CASE("Open MPI's files are in the job's private folder on every host and go with it") {
  if (Skipped()) return;
  const bool other_folder = GENERATE(false, true);
  const CommandResult result = Run(ScriptOnHosts(
      (other_folder ? kOtherFolderOnH2 : "") +
      "launcher/dtrun --tag none -H h1:1,h2:2 tests/ranks/summing 2000 >/run/out & "
      "until [ \"$(wc -l </run/out)\" -ge 3 ]; do sleep 0.1; done; "
      "for h in h1 h2; do ssh $h 'find /run/tmp /dev/shm -name \"ompi.*\"; "
      "find /run/tmp /dev/shm -maxdepth 1 -name \"dtrun.*\" -not -perm 700'; done | "
      "sed -E 's/dtrun\\.[^/]*/dtrun.X/'; kill -KILL $!; wait $!; sleep 1; "
      "for h in h1 h2; do ssh $h 'find /run/tmp /dev/shm -mindepth 1'; done"));
  CAPTURE(other_folder, result.err);
  CHECK(
      result.out == "/run/tmp/dtrun.X/ompi.h1.0\n" +
                        std::string(other_folder ? "/dev/shm" : "/run/tmp") +
                        "/dtrun.X/ompi.h2.0\n");
}

TEST_CASE("only the job's user can access the job's folders on every host") {
  if (Skipped()) return;
  const CommandResult result = WhileAJobRuns(
      "stat -c '%a %U' $TMPDIR/dtrun.* /dev/shm/dtrun.* /dev/shm/dtrun.*/flight | sort -u");
  CAPTURE(result.out, result.err);
  CHECK(result.out == "700 root\n700 root\n");
}

}  // namespace
