// Jobs over so many hosts that they start the agents and ranks of each other (--fanout). h1 runs
// dtrun and reaches h2 and h3; h2 reaches h4 and h6, h3 reaches h5 and h7, h4 reaches h8.

#include <catch2/catch.hpp>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::StartsWith;

const Words kEightHosts = {"--names", "h1,h2,h3,h4,h5,h6,h7,h8"};
const std::string kTreeJob =
    "$PWD/launcher/dtrun --launcher ssh --fanout 2 --host-timeout 4 --tag none -H "
    "h1:1,h2:1,h3:1,h4:1,h5:1,h6:1,h7:1,h8:2 ";

// `await_ranks` waits until all ranks have printed "up" to /run/out. `left` prints what is left of
// the job on each host: processes, and files.
const std::string kTreeTools =
    "await_ranks() { until [ \"$(grep -c up /run/out)\" = 9 ]; do sleep 0.05; done; }; "
    "left() { for h in 1 2 3 4 5 6 7 8; do ssh h$h 'pgrep -fa \"^sleep-of-jo[b]\"; pgrep -a dtrun; "
    "pgrep -fa \"^ssh .*dtrun[_]\"; find $TMPDIR /dev/shm -mindepth 1' || true; done; }; ";
const std::string kSleepingRanks =
    "bash -c 'echo up; exec -a sleep-of-job sleep 600' >/run/out 2>/run/err & ";

TEST_CASE("hosts of a large job reach each other, and dtrun only the first of them") {
  if (Skipped()) return;
  // Two connections to a host: of its agent and its dtrun_local.
  const CommandResult result = Run(ScriptOnHosts(
      kTreeJob + "sh -c 'sleep 1; echo $RANK $(hostname) $(pgrep -xc ssh)' | sort -n; " +
          kTreeTools + "left",
      kEightHosts));
  CAPTURE(result.err);
  CHECK(result.out == "0 h1 4\n1 h2 4\n2 h3 4\n3 h4 2\n4 h5 0\n5 h6 0\n6 h7 0\n7 h8 0\n8 h8 0\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("the output and the end of a rank pass through other hosts") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "seq 100000 | " + kTreeJob +
          "--stdin 0 sh -c 'if [ $RANK = 0 ]; then cat | cksum; else seq 100000; fi; "
          "[ $RANK = 8 ] && sleep 2 && exit 9; sleep 100' >/run/out 2>/run/err; echo $?; "
          "grep -c . /run/out; grep -xc 77777 /run/out; seq 100000 | cksum | grep -xcf - /run/out; "
          "cat /run/err",
      kEightHosts));
  CHECK_THAT(result.out, StartsWith("9\n800001\n8\n1\ndtrun: rank 8 on h8 exited with code 9\n"));
}

TEST_CASE("a fault on a host that leads to others is named, and nothing is left anywhere") {
  if (Skipped()) return;
  const auto [fault, code, message] = GENERATE(table<std::string, std::string, std::string>({
      {"ssh h2 pkill -KILL dtrun_agent", "69", "dtrun: host h2 was lost: "},
      {"ssh h4 pkill -KILL dtrun_agent", "69", "dtrun: host h4 was lost: "},
      {"ssh h4 pkill -KILL dtrun_local", "70", "dtrun: dtrun_local on h4 was lost; "},
      {"nsenter --net=/run/rig/h2/net ip link set eth0 down; sleep 6; "
       "nsenter --net=/run/rig/h2/net ip link set eth0 up",
       "69", "dtrun: host h2 was lost: "},
      {"nsenter --net=/run/rig/h8/net ip link set eth0 down; sleep 6; "
       "nsenter --net=/run/rig/h8/net ip link set eth0 up",
       "69", "dtrun: host h8 was lost: "},
      {"ssh h4 pkill -STOP dtrun_agent; sleep 6; kill -INT $!", "130", "dtrun: ended by SIGINT\n"},
      {"kill -KILL $!", "137", ""},
      {"kill -TERM $!", "143", "dtrun: ended by SIGTERM\n"},
  }));
  const CommandResult result = Run(ScriptOnHosts(
      kTreeTools + kTreeJob + kSleepingRanks + "await_ranks; " + fault +
          "; wait $!; echo $?; sleep 3; left; head -n 1 /run/err",
      kEightHosts));
  CAPTURE(fault, result.err);
  CHECK_THAT(result.out, StartsWith(code + "\n" + message));
}

TEST_CASE("dtrun itself reaches the hosts that another host cannot reach") {
  if (Skipped()) return;
  const std::string where = GENERATE("2 3 4 5 6 7 8", "4");
  const CommandResult result = Run(ScriptOnHosts(
      kBlockSsh + "for h in " + where +
          "; do ssh h$h mount --bind /run/no_ssh/ssh $(readlink -f $(command -v ssh)); done; " +
          kTreeJob + "hostname | sort | tr '\\n' ' '",
      kEightHosts));
  CAPTURE(where, result.err);
  CHECK(result.out == "h1 h2 h3 h4 h5 h6 h7 h8 h8 ");
  CHECK(result.err == "");
}

TEST_CASE("a host that no other host reaches is named once") {
  if (Skipped()) return;
  const CommandResult result = Run(
      ScriptOnHosts("ssh h4 pkill sshd 2>/run/ended; " + kTreeJob + "true; echo $?", kEightHosts));
  CHECK(result.out == "69\n");
  CHECK(
      result.err ==
      "dtrun: host h4 cannot be used: ssh: connect to host h4 port 22: Connection refused\n");
}

}  // namespace
