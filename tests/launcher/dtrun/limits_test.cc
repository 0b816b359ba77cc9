// Hosts with low limits. dtrun works, or names the limit.

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>

#include "base/text.h"
#include "tests/launcher/dtrun/process_test.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

// `script` runs in bash. "$@" is the command line of dtrun, and $1 is dtrun.
CommandResult UnderLimit(const DtrunTest& test, const std::string& script, int ranks = 2) {
  return Run(
      {.argv =
           {"bash", "-c", script, "bash", DtrunTest::Dtrun(), "--tag", "none", "-np",
            std::to_string(ranks), "echo", "hi"},
       .environment = {{"TMPDIR", test.temp.path()}, {"OMPI_ALLOW_RUN_AS_ROOT", "1"}}});
}

TEST_CASE("too few open files are reported with the number that the job needs") {
  const DtrunTest test;
  const CommandResult result = UnderLimit(test, "ulimit -n 16; exec \"$@\"");
  CHECK(result.exit_code == 69);
  CHECK(
      result.err ==
      "dtrun: this host allows a process 16 open files; 2 ranks need 34 (ulimit -n 34 raises the "
      "limit)\n");
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("with enough open files a job runs and otherwise one line names the limit") {
  const DtrunTest test;
  const int files = GENERATE(4, 6, 8, 10, 14, 22, 33, 34, 42);
  const CommandResult result = UnderLimit(test, base::Text("ulimit -n ", files, "; exec \"$@\""));
  CAPTURE(files, result.err);
  CHECK_FALSE(result.timed_out);
  if (files >= 34) {
    CHECK(result.exit_code == 0);
    CHECK(result.out == "hi\nhi\n");
  } else {
    CHECK((result.exit_code == 69 || result.exit_code == 70));
    CHECK(LineCount(result.err) == 1);
    CHECK_THAT(result.err, StartsWith("dtrun: ") && Contains("ulimit -n"));
  }
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("a user with too few processes gets one line that names the limit") {
  if (geteuid() != 0) {
    std::printf("SKIPPED: only root can become another user\n");
    return;
  }
  const DtrunTest test;
  // No other process belongs to this user. The user cannot read root's build, so the programs are
  // copied.
  const std::string become =
      "mkdir -m 777 $TMPDIR/bin $TMPDIR/tmp && chmod 755 $TMPDIR && "
      "cp -L $1 ${1%dtrun}dtrun_agent ${1%dtrun}dtrun_rank ${1%dtrun}dtrun_listen.so $TMPDIR/bin "
      "&& "
      "shift && "
      "exec setpriv --reuid=54321 --regid=54321 --clear-groups env HOME=/ TMPDIR=$TMPDIR/tmp "
      "bash -c 'ulimit -u $0; exec \"$@\"' ";
  const int processes = GENERATE(1, 2, 3, 5, 9, 30);
  const CommandResult result =
      UnderLimit(test, base::Text(become, processes, " $TMPDIR/bin/dtrun \"$@\""));
  CAPTURE(processes, result.out, result.err);
  CHECK_FALSE(result.timed_out);
  if (processes >= 30) {
    CHECK(result.out == "hi\nhi\n");
    CHECK(result.exit_code == 0);
  } else {
    CHECK(result.exit_code == (processes < 3 ? 70 : 69));
    CHECK(LineCount(result.err) == 1);
    CHECK_THAT(result.err, StartsWith("dtrun: ") && Contains("ulimit -u"));
  }
  CHECK(std::filesystem::is_empty(test.temp.path() + "/tmp"));
}

TEST_CASE("a cgroup that allows too few processes is named") {
  const DtrunTest test;
  const CommandResult result = UnderLimit(
      test,
      "for c in /sys/fs/cgroup/pids /sys/fs/cgroup; do mkdir $c/dtrun_test.$$ 2>/dev/null && "
      "break; "
      "done; c=$c/dtrun_test.$$; echo 2 >$c/pids.max || { rmdir $c; exit 77; }; "
      "sh -c 'echo $$ >$0/cgroup.procs && exec \"$@\"' $c \"$@\"; code=$?; sleep 0.1; rmdir $c; "
      "exit $code");
  if (result.exit_code == 77) {
    std::printf("SKIPPED: no cgroup can be made here\n");
    return;
  }
  CHECK(result.exit_code == 70);
  CHECK(
      result.err ==
      "dtrun: cannot start a process: Resource temporarily unavailable (the cgroup allows 2 "
      "processes and threads, pids.max)\n");
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("a job that cannot start for lack of open files leaves no file in /dev/shm") {
  const DtrunTest test;
  const int files = GENERATE(4, 5, 6, 7, 8, 10, 20, 33, 34);
  const CommandResult result = UnderLimit(
      test, base::Text(
                "exec unshare -m bash -c 'mount -t tmpfs tmpfs /dev/shm || exit 77; "
                "(ulimit -n ",
                files, "; exec \"$@\" >/dev/null 2>&1); ls /dev/shm' bash \"$@\""));
  if (result.exit_code == 77 || result.err.find("unshare failed") != std::string::npos) {
    std::printf("SKIPPED: mounting is not allowed here\n");
    return;
  }
  CAPTURE(files);
  CHECK(result.exit_code == 0);
  CHECK(result.out == "");
}

TEST_CASE("an unusable temporary folder is reported with the reason") {
  const DtrunTest test;
  const auto [how, why] = GENERATE(table<std::string, std::string>({
      {"mount -t tmpfs -o ro tmpfs $TMPDIR", ": Read-only file system"},
      {"mount -t tmpfs -o size=4k tmpfs $TMPDIR && mkdir $TMPDIR/x && ! head -c 9999 /dev/zero "
       ">$TMPDIR/x/y 2>/dev/null",
       ": 0 KiB are free; expected 256 KiB"},
      {"mount -t tmpfs -o nr_inodes=5 tmpfs $TMPDIR",
       ": 4 files can be made, then it has no inodes left; expected 32"},
      {"export TMPDIR=/nonexistent", ": No such file or directory"},
  }));
  const CommandResult result = UnderLimit(
      test, "exec unshare -m bash -c '" + how +
                " || exit 77; \"$@\"; code=$?; rm -rf $TMPDIR/x; "
                "ls -A $TMPDIR 2>/dev/null; exit $code' bash \"$@\"");
  if (result.exit_code == 77 || result.err.find("unshare failed") != std::string::npos) {
    std::printf("SKIPPED: mounting is not allowed here\n");
    return;
  }
  CAPTURE(how);
  CHECK(result.exit_code == 69);
  CHECK(result.out == "");
  CHECK(
      result.err == "dtrun: cannot make a folder for the job in " +
                        (how.starts_with("export") ? "/nonexistent" : test.temp.path()) +
                        " (TMPDIR chooses another place)" + why + "\n");
}

}  // namespace
}  // namespace dtrun::testing
