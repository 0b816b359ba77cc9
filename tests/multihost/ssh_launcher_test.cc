// Jobs over several hosts that dtrun starts through ssh alone (--launcher ssh). The ranks are plain
// programs.

#include <catch2/catch.hpp>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

const std::string kSshJob = "$PWD/launcher/dtrun --launcher ssh --tag none -H h1:1,h2:1 ";

// No host has Open MPI, and h1 has no mpirun.
const std::string kWithoutMpi =
    "for h in h1 h2; do ssh $h mount --bind /dev/null $(readlink -f $(command -v orted)); done; "
    "mount --bind /dev/null $(readlink -f $(command -v mpirun)); ";

TEST_CASE("without Open MPI on any host ssh starts the ranks, with or without --launcher") {
  if (Skipped()) return;
  const std::string launcher = GENERATE("--launcher ssh ", "");
  const CommandResult result = Run(ScriptOnHosts(
      kWithoutMpi + "export PLAIN=\"a b'c\" OTHER_TOKEN=hush; exec " + kDtrun + " " + launcher +
      "-v --tag none -H h1:1,h2:2 sh -c 'echo $DTRUN_RANK $RANK $LOCAL_RANK/$LOCAL_WORLD_SIZE "
      "$(hostname) $(getent hosts $MASTER_ADDR | tr -s \" \" | cut -d\" \" -f2) \"$PLAIN\" "
      "${OTHER_TOKEN-none} $(wc -c <$DTRUN_JOB_SECRET_FILE)'"));
  CAPTURE(launcher, result.err);
  CHECK(result.exit_code == 0);
  for (const char* line :
       {"0 0 0/1 h1 h1 a b'c hush 64\n", "1 1 0/2 h2 h1 a b'c none 64\n",
        "2 2 1/2 h2 h1 a b'c none 64\n"})
    CHECK_THAT(result.out, Contains(line));
  const std::string choice = "dtrun: mpirun was not found in PATH; dtrun uses --launcher ssh\n";
  CHECK((result.err.find(choice) != std::string::npos) == launcher.empty());
  CHECK_THAT(result.err, Contains("dtrun: rank 2 on h2: "));
}

TEST_CASE("arguments reach a rank that ssh has started byte for byte") {
  if (Skipped()) return;
  const std::string odd = "a;b  'c' \"d\" $(id) \n * =\\\t\xff\x01", large(100'000, 'x');
  const CommandResult result = Run(OnHosts(
      {kDtrun, "--launcher", "ssh", "--tag", "none", "-H", "h2", "sh", "-c",
       "printf '%s|' \"$(hostname)\" \"$ODD\"; printf '<%s>' \"$@\"", "sh", "", "a b", odd, "--",
       "+", large},
      {}, {{"ODD", odd}}));
  CHECK((result.out == "h2|" + odd + "|<><a b><" + odd + "><--><+><" + large + ">"));
  CHECK(result.exit_code == 0);
}

TEST_CASE("a rank that fails under ssh ends the job with its exit code or signal") {
  if (Skipped()) return;
  const auto [host, end, code, message] =
      GENERATE(table<std::string, std::string, int, std::string>({
          {"h2", "exit 9", 9, "dtrun: rank 1 on h2 exited with code 9\n"},
          {"h1", "exit 255", 255, "dtrun: rank 0 on h1 exited with code 255\n"},
          {"h2", "kill -SEGV $$", 139, "dtrun: rank 1 on h2 was killed by SIGSEGV\n"},
      }));
  const CommandResult result = Run(ScriptOnHosts(
      "exec " + kSshJob + "sh -c '[ $(hostname) = " + host + " ] && { sleep 0.5; " + end +
      "; }; trap \"\" TERM; sleep 600 & wait; wait'"));
  CAPTURE(host, end);
  CHECK(result.exit_code == code);
  CHECK_THAT(result.err, Contains(message));
}

TEST_CASE("ending dtrun or dtrun_local under ssh leaves no process and no file on any host") {
  if (Skipped()) return;
  const std::string how = GENERATE(
      "kill -KILL $!", "kill -INT $!", "kill -TERM $!", "pkill -KILL -P $! dtrun_local",
      "ssh h2 pkill -KILL dtrun_local");
  const CommandResult result = Run(ScriptOnHosts(
      kSshJob +
      "bash -c 'echo up; exec -a sleep-of-job sleep 600' >/run/out & "
      "until [ \"$(grep -c up /run/out)\" = 2 ]; do sleep 0.05; done; " +
      how +
      "; sleep 3; for h in h1 h2; do ssh $h 'pgrep -fc \"^sleep-of-jo[b]\"; pgrep -c dtrun_; "
      "find $TMPDIR /dev/shm -mindepth 1'; done"));
  CAPTURE(how, result.err);
  CHECK(result.out == "0\n0\n0\n0\n");
}

TEST_CASE("a lost host, connection or dtrun_local ends a job under ssh and is named") {
  if (Skipped()) return;
  const auto [fault, code, message] = GENERATE(table<std::string, int, std::string>({
      {"ssh h2 kill 1", 69, "dtrun: host h2 was lost: "},
      {"nsenter --net=/run/rig/h2/net ip link set eth0 down", 69, "dtrun: host h2 was lost: "},
      {"pkill -KILL -f '^ssh .*dtrun_local'", 69,
       "dtrun: the connection to h2 was lost; the ranks were ended\n"},
      {"ssh h2 pkill -KILL dtrun_local", 70,
       "dtrun: dtrun_local on h2 was lost; its ranks were ended\n"},
      {"ssh h2 pkill -STOP dtrun_local; sleep 5; pkill -TERM -f ^sleep-of-job", 143,
       "dtrun: rank 0 on h1 was killed by SIGTERM\n"},
  }));
  Command command = ScriptOnHosts(
      kSshJob +
      "--host-timeout 4 bash -c 'echo up; exec -a sleep-of-job sleep 600' >/run/out & "
      "until [ \"$(grep -c up /run/out)\" = 2 ]; do sleep 0.05; done; " +
      fault + "; wait $!");
  command.timeout = std::chrono::seconds(60);
  const CommandResult result = Run(command);
  CAPTURE(fault, result.err);
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == code);
  CHECK_THAT(result.err, Contains(message));
}

TEST_CASE("under ssh no command line on any host contains the value of a variable") {
  if (Skipped()) return;
  const std::string script =
      kSshJob +
      "-x MY_TOKEN sh -c 'echo up; exec sleep 600' >/run/out & "
      "until [ \"$(grep -c up /run/out)\" = 2 ]; do sleep 0.05; done; "
      "for h in h1 h2; do ssh $h 'ps -e -o args'; done; kill $!; wait $!; true";
  const CommandResult result =
      Run(OnHosts({"sh", "-c", script}, {}, {{"MY_TOKEN", "hush-a1b2"}, {"PLAIN", "plain-e5f6"}}));
  CAPTURE(result.out);
  CHECK_THAT(
      result.out,
      Contains("dtrun_local 1 1@h2 ") && Contains("-x MY_TOKEN") && Contains("-x PLAIN"));
  for (const char* value : {"hush-a1b2", "plain-e5f6"}) CHECK_THAT(result.out, !Contains(value));
}

TEST_CASE("parameter servers and workers that ssh has started survive the loss of workers") {
  if (Skipped()) return;
  const std::string fault = GENERATE("true", "ssh h2 kill 1", "ssh h2 pkill -KILL dtrun_local");
  const CommandResult result = Run(ScriptOnHosts(
      kWithoutMpi + kDtrun +
      " --launcher ssh --tag none --host-timeout 5 -H h1:2,h2:2 --ps 1 tests/ranks/serving 8000 "
      "wait & sleep 3; " +
      fault + "; wait $!"));
  CAPTURE(fault, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains(fault == "true" ? ", lost 0\n" : ", lost 2\n"));
}

}  // namespace
