// dtrun's stdin and the rank that reads it.

#include <catch2/catch.hpp>

#include "tests/launcher/dtrun/process_test.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

// Runs a shell line. In the line, $D is dtrun.
CommandResult Shell(const DtrunTest& test, const std::string& script) {
  return Run(
      {.argv = {"bash", "-c", "D='" + DtrunTest::Dtrun() + " --tag none'; " + script},
       .environment = {{"TMPDIR", test.temp.path()}}});
}

TEST_CASE("with --stdin 0 only rank 0 reads dtrun's stdin byte for byte") {
  const DtrunTest test;
  const CommandResult result = Shell(
      test,
      "head -c 20000000 /dev/urandom >$TMPDIR/bytes; sha1sum <$TMPDIR/bytes; "
      "cat $TMPDIR/bytes | $D --stdin 0 -np 2 sh -c '[ $RANK = 0 ] && exec sha1sum; wc -c >&2'; "
      "$D --stdin 0 -np 1 sha1sum <$TMPDIR/bytes; rm $TMPDIR/bytes");
  const std::string line = result.out.substr(0, result.out.find('\n') + 1);
  CHECK(line.size() > 40);
  CHECK(result.out == line + line + line);
  CHECK(result.err == "0\n");
}

TEST_CASE("without --stdin the stdin of every rank is empty") {
  const DtrunTest test;
  CHECK(Shell(test, "echo some | $D -np 2 wc -c").out == "0\n0\n");
  CHECK(Shell(test, "echo some | $D -np 2 --stdin none wc -c").out == "0\n0\n");
}

TEST_CASE("a closed stdin of dtrun counts as empty") {
  const DtrunTest test;
  const CommandResult result = Shell(test, "$D --stdin 0 -np 2 wc -c <&-");
  CHECK(result.out == "0\n0\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("a rank that stops reading or ends does not block or end dtrun") {
  const DtrunTest test;
  CHECK(Shell(test, "yes | $D --stdin 0 -np 2 sh -c 'read line; echo $line'").exit_code == 0);
  const CommandResult closed =
      Shell(test, "yes | $D --stdin 0 -np 2 sh -c 'exec <&-; seq 100000 | tail -n 1'; echo $?");
  CHECK(closed.out == "100000\n100000\n0\n");
}

TEST_CASE("dtrun reads little more of its stdin than rank 0 takes") {
  const DtrunTest test;
  // `wc -c` counts the rest of stdin. Only the bytes in the rank's pipe and in the window are
  // missing.
  const CommandResult result = Shell(
      test,
      "head -c 50000000 /dev/zero >$TMPDIR/bytes; exec <$TMPDIR/bytes; "
      "$D --stdin 0 -np 1 sh -c 'head -c 100 >/dev/null; seq 300000 | tail -n 1'; wc -c; "
      "rm $TMPDIR/bytes");
  REQUIRE_THAT(result.out, StartsWith("300000\n"));
  CHECK(std::stol(result.out.substr(7)) >= 50'000'000 - 1'000'000);
}

TEST_CASE("a terminal is read line by line and Ctrl-D ends the input") {
  const DtrunTest test;
  const std::string script = test.temp.Write("terminal.py", R"(
import os, pty, sys
got = b""
def read_until(text):
    global got
    while text not in got:
        got += os.read(terminal, 1000)
    got = got[got.index(text) + len(text):]
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
os.write(terminal, b"first\n")
read_until(b"got first")
os.write(terminal, b"second\n\x04")
read_until(b"got second")
read_until(b"and no more")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
)");
  const CommandResult result = Run(
      {.argv = {
           "python3", script, DtrunTest::Dtrun(), "--tag", "none", "--stdin", "0", "-np", "2", "sh",
           "-c",
           "[ $RANK = 1 ] && exit; while read line; do echo got $line; done; echo and no more"}});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
}

TEST_CASE("--stdin accepts only none and 0") {
  const DtrunTest test;
  const std::string value = GENERATE("all", "1");
  const CommandResult result = test.Run({"--stdin", value, "-np", "2", "cat"});
  CHECK(result.exit_code == 2);
  CHECK(
      result.err ==
      "dtrun: --stdin " + value + ": expected none or 0: rank 0 alone can have dtrun's stdin\n");
}

}  // namespace
}  // namespace dtrun::testing
