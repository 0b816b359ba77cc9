// Parameter servers over several hosts: losses that end the job, and losses that do not.

#include <catch2/catch.hpp>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

// Rank 0 is the server. Ranks 0 and 1 are on h1, ranks 2 and 3 on h2.
Words Serving(const Words& program) {
  Words words = {"launcher/dtrun", "--tag", "none", "-H",
                 "h1:2,h2:2",      "--ps",  "1",    "tests/ranks/serving"};
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

// Runs a job and, 3 s later, `fault`, which strikes h2.
Command WithFault(const std::string& fault) {
  return ScriptOnHosts(
      "launcher/dtrun --tag none --host-timeout 5 -H h1:2,h2:2 --ps 1 tests/ranks/serving 8000 "
      "wait "
      "& sleep 3; " +
      fault + "; wait $!");
}

TEST_CASE("workers on two hosts train variables of a server on one of them") {
  if (Skipped()) return;
  const CommandResult result = Run(OnHosts(Serving({"64"})));
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("from 0: w0 0.9375, count 64, updates 64, lost 0\n"));
}

TEST_CASE("a killed worker on another host does not end the job") {
  if (Skipped()) return;
  const std::string how = GENERATE("worker", "wrapper");
  const TemporaryFolder folder;
  const CommandResult result = Run(OnHosts(Serving({"2000", how, folder.path()})));
  CAPTURE(how, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("updates 2000, lost 1\n"));
  CHECK_THAT(
      result.err, Contains("rank 3 on h2, a worker, is lost; its step ") &&
                      Contains("dtrun: rank 3 on h2 was killed ") &&
                      Contains(" on without this worker (--ps)\n"));
}

TEST_CASE("a job survives the loss of a host with workers only or of Open MPI's daemon there") {
  if (Skipped()) return;
  const auto [fault, line] = GENERATE(table<std::string, std::string>({
      {"ssh h2 kill 1", "dtrun: host h2 was lost: "},
      {"ssh h2 pkill -KILL orted", "dtrun: rank 2 on h2 was killed together with its wrapper; "},
      {"nsenter --net=/run/rig/h2/net ip link set eth0 down", "dtrun: host h2 was lost: "},
  }));
  const CommandResult result = Run(WithFault(fault));
  CAPTURE(fault, result.out, result.err);
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.err, Contains(line) && Contains("the job goes on without "));
  CHECK_THAT(result.out, Contains(", lost 2\n"));
}

TEST_CASE("a lost server ends the job on all hosts with a hint about restarting") {
  if (Skipped()) return;
  const CommandResult result = Run(OnHosts(Serving({"2000", "server"})));
  CHECK(result.exit_code == 137);
  CHECK_THAT(
      result.err, Contains("dtrun: rank 0 on h1 was killed by SIGKILL\n") &&
                      Contains("hint: rank 0 held variables (--ps), which are lost; start the job "
                               "again (a job that saves checkpoints continues from the newest)\n"));
}

TEST_CASE("the loss of a host with a server ends the job") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "launcher/dtrun --tag none -H h1:1,h2:2 --ps 2 tests/ranks/serving 8000 wait & sleep 3; "
      "ssh h2 kill 1; wait $!"));
  CAPTURE(result.err);
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == 69);
  CHECK_THAT(result.err, Contains("dtrun: host h2 was lost: "));
}

}  // namespace
