// The data that dtrun sends to other hosts, and the connections to them.

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

TEST_CASE("arguments and variables reach another host byte for byte but secrets do not") {
  if (Skipped()) return;
  const std::string odd = "a;b  'c' \"d\" $(id) \n * =\\\t\xff\x01", large(100'000, 'x');
  const CommandResult result = Run(OnHosts(
      {kDtrun,
       "--tag",
       "none",
       "-H",
       "h2",
       "-x",
       "NAMED_TOKEN",
       "sh",
       "-c",
       "printf '%s|%s|%s|%s|' \"$(hostname)\" \"$ODD\" \"$NAMED_TOKEN\" \"$OTHER_TOKEN\"; "
       "printf '<%s>' \"$@\"",
       "sh",
       "",
       "a b",
       "$(id)",
       "x'y\"z",
       "n\nl",
       "*",
       "--",
       odd,
       "-np",
       "+",
       large},
      {}, {{"ODD", odd}, {"NAMED_TOKEN", "named"}, {"OTHER_TOKEN", "hush"}}));
  CHECK(
      result.out == "h2|" + odd + "|named||<><a b><$(id)><x'y\"z><n\nl><*><--><" + odd +
                        "><-np><+><" + large + ">");
  CHECK(result.exit_code == 0);
}

TEST_CASE("another host gets large and empty variables but none without a shell name") {
  if (Skipped()) return;
  const std::string large = "\n" + std::string(100'000, 'x') + "'\xff";
  const CommandResult result = Run(OnHosts(
      {kDtrun, "--tag", "none", "-H", "h2", "-x", "LARGE", "/usr/bin/python3", "-c",
       "import os, sys\n"
       "for name in [b'LARGE', b'EMPTY', b'BASH_FUNC_f%%', b'a.b']:\n"
       "    sys.stdout.buffer.write(b'<' + os.environb.get(name, b'none') + b'>')"},
      {}, {{"LARGE", large}, {"EMPTY", ""}, {"BASH_FUNC_f%%", "() { :\n}"}, {"a.b", "1"}}));
  CHECK((result.out == "<" + large + "><><none><none>"));
  CHECK(result.exit_code == 0);
}

TEST_CASE("MASTER_ADDR of a rank on another host is the first host") {
  if (Skipped()) return;
  const CommandResult result = Run(OnHosts(
      {kDtrun, "--tag", "none", "-H", "h2:1,h1:2", "sh", "-c",
       "[ $RANK = 2 ] && echo $LOCAL_RANK/$LOCAL_WORLD_SIZE $(getent hosts $MASTER_ADDR) || "
       "true"}));
  CHECK_THAT(result.out, Catch::StartsWith("1/2 10.") && Catch::EndsWith(" h2\n"));
}

TEST_CASE("--network-interfaces takes the names of this host even if other hosts use other names") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "nsenter --net=/run/rig/h2/net sh -c 'ip link set eth1 down && ip link set eth1 name ib0 && "
      "ip link set ib0 up' && " +
          std::string(kDtrun) + " -H h1:1,h2:1 --network-interfaces eth1 examples/sgd",
      {"--nics", "eth0,eth1"}));
  CHECK_THAT(result.out, Contains("2 ranks agree on 0.500\n"));
  CHECK(result.exit_code == 0);
}

TEST_CASE("a missing sshd is reported and ssh does not prompt") {
  if (Skipped()) return;
  Command command =
      OnHosts({kDtrun, "--tag", "none", "-H", "h1:1,h2:1", "--ssh-port", "7", "true"});
  command.timeout = std::chrono::seconds(30);
  const CommandResult result = Run(command);
  CHECK(result.exit_code == 69);
  CHECK_THAT(result.err, Contains("h2") && Contains("Connection refused"));
}

TEST_CASE("a silent host is lost after --host-timeout") {
  if (Skipped()) return;
  TemporaryFolder folder;
  Command command = ScriptOnHosts(
      "out=" + folder.path() + "/out; " + kDtrun +
      " -H h1:1,h2:1 --host-timeout 4 sh -c 'echo up; exec sleep 50' >$out & "
      "until [ \"$(grep -c up $out)\" = 2 ]; do sleep 0.1; done; "
      "nsenter --net=/run/rig/h2/net ip link set eth0 down; cut=$(date +%s); "
      "wait $!; code=$?; echo $(($(date +%s) - cut)) $code");
  command.timeout = std::chrono::seconds(60);
  const CommandResult result = Run(command);
  CAPTURE(result.out, result.err);
  const int lasted_s = std::atoi(result.out.c_str());
  CHECK(lasted_s <= 15);
  CHECK_THAT(result.out, !Catch::EndsWith(" 0\n"));
  CHECK_FALSE(result.timed_out);
}

}  // namespace
