// What other users of the hosts, and the network, see of a job: docs/security.md.

#include <catch2/catch.hpp>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

// Prints what `look` prints on each of the hosts while both ranks of a job run. A rank says so by a
// file in $TMPDIR, and ends when that file is gone.
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

TEST_CASE("no command line on any host holds the value of a variable") {
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

TEST_CASE("every ssh asks nothing, hands nothing on, and checks host keys as the user wants") {
  if (Skipped()) return;
  const CommandResult result = WhileAJobRuns(
      "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done | "
      "grep -E '^[^ ]*ssh .* h2 .*(dtrun_agent|orted)' | sed -E 's/ h2 .*//' | LC_ALL=C sort");
  CAPTURE(result.out, result.err);
  // mpirun's and dtrun's own.
  CHECK(
      result.out ==
      "/usr/bin/ssh -x -x -a -o BatchMode=yes -o ConnectTimeout=60\n"
      "ssh -x -a -o BatchMode=yes -o ConnectTimeout=60 --\n");
}

TEST_CASE("nothing listens on the network but Open MPI's own processes") {
  if (Skipped()) return;
  const CommandResult result = WhileAJobRuns(
      "ss -Hltnp | sed -E 's/.*users:\\(\\(\"([^\"]*)\".*/\\1/' | sort -u | tr '\\n' ' '; "
      "ss -Hlun | wc -l");
  CAPTURE(result.out, result.err);
  CHECK(result.out == "mpirun sshd 0\norted sshd 0\n");
}

TEST_CASE("the job's folders are for its user alone on every host") {
  if (Skipped()) return;
  const CommandResult result = WhileAJobRuns(
      "stat -c '%a %U' $TMPDIR/dtrun.* /dev/shm/dtrun.* /dev/shm/dtrun.*/flight | sort -u");
  CAPTURE(result.out, result.err);
  CHECK(result.out == "700 root\n700 root\n");
}

}  // namespace
