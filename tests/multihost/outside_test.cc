// Events from outside a job over several hosts: notices, Ctrl-Z, stdin.

#include <catch2/catch.hpp>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

// Runs two ranks in the background, waits until both have printed their process ids, and runs
// `then`. $! is dtrun's process id.
CommandResult While(
    const std::string& options, const std::string& behaviour, const std::string& then) {
  return Run(ScriptOnHosts(
      "out=$TMPDIR/out; launcher/dtrun --tag none -H h1:1,h2:1 " + options +
      " $PWD/tests/launcher/dtrun/preemptible " + behaviour +
      " >$out & "
      "until [ \"$(cat $out 2>/dev/null | wc -l)\" = 2 ]; do sleep 0.1; done; " +
      then + "; wait $!; echo code $?; grep -c noticed $out"));
}

TEST_CASE("a notice reaches the ranks of all hosts and their answers reach dtrun") {
  if (Skipped()) return;
  const auto [signal, behaviour, said] = GENERATE(
      std::tuple("TERM", "save", "code 75\n2\n"), std::tuple("USR1", "save", "code 75\n2\n"),
      std::tuple("INT", "silent", "code 130\n0\n"));
  const CommandResult result = While("", behaviour, std::string("kill -") + signal + " $!");
  CAPTURE(signal, result.err);
  CHECK(result.out == said);
}

TEST_CASE("a rank on another host that outlives the grace time is ended") {
  if (Skipped()) return;
  const CommandResult result = While("--grace 1", "ignore", "kill -TERM $!");
  CHECK(result.out == "code 143\n2\n");
}

TEST_CASE("a job that was stopped for longer than --host-timeout continues") {
  if (Skipped()) return;
  const std::string states =
      "for h in h1 h2; do ssh $h 'ps -o stat= -C preemptible'; done | cut -c1";
  const CommandResult result = While(
      "--host-timeout 4", "save",
      "kill -TSTP $!; until [ \"$(ps -o stat= -p $! | cut -c1)\" = T ]; do sleep 0.1; done; " +
          states + "; sleep 6; kill -CONT $!; kill -USR1 $!");
  CAPTURE(result.err);
  CHECK(result.out == "T\nT\ncode 75\n2\n");
}

TEST_CASE("rank 0 reads dtrun's stdin on any host") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "head -c 5000000 /dev/urandom >$TMPDIR/bytes; sha1sum <$TMPDIR/bytes; "
      "launcher/dtrun --tag none --stdin 0 -H h2:1,h1:1 "
      "sh -c '[ $RANK = 0 ] && { hostname >&2; exec sha1sum; }; wc -c >&2' <$TMPDIR/bytes"));
  const std::string line = result.out.substr(0, result.out.find('\n') + 1);
  CHECK(line.size() > 40);
  CHECK(result.out == line + line);
  CHECK_THAT(result.err, Contains("h2\n") && Contains("0\n"));
  CHECK(result.exit_code == 0);
}

}  // namespace
