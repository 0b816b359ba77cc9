// The networks that hosts use for a job.

#include <catch2/catch.hpp>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

const std::string kVerboseJob = "$PWD/launcher/dtrun --verbose --tag none -H h1:1,h2:1 ";
// MPI uses only TCP for this program.
const std::string kTcpProgram = "--mpi-args '--mca btl tcp,self --mca pml ob1' examples/sgd";

// Creates Docker's bridge on every host: separate networks with the same addresses.
const std::string kDocker =
    "for h in h1 h2; do nsenter --net=/run/rig/$h/net sh -c 'ip link add docker0 type bridge; "
    "ip address add 172.17.0.1/16 dev docker0; ip link set docker0 up'; done; ";

// Moves h2 to another network, with the address `$net`.2. h1 has a route to it.
const std::string kMoveH2 =
    "own=$(hostname -I | cut -d. -f1-3); ip route add $net.0/24 dev eth0; "
    "nsenter --net=/run/rig/h2/net sh -c \"ip address flush dev eth0; "
    "ip address add $net.2/24 dev eth0; ip route add $own.0/24 dev eth0\"; "
    "sed \"s/.* h2$/$net.2 h2/\" /etc/hosts >$TMPDIR/hosts; mount --bind $TMPDIR/hosts "
    "/etc/hosts; ";

void CheckWorks(const CommandResult& result) {
  CAPTURE(result.out, result.err);
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("2 ranks agree on 0.500\n"));
  // Open MPI prints a warning if it rejects a list of networks.
  CHECK_THAT(result.err, !Contains("WARNING: "));
}

TEST_CASE("a bridge with the same address on both hosts is not used") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(kDocker + "exec " + kVerboseJob + kTcpProgram));
  CheckWorks(result);
  CHECK_THAT(
      result.err, Contains("dtrun: network of h2: eth0 (virtual, 10.") &&
                      Contains("; not docker0 (a bridge, 172.17.0.1/16)\n") &&
                      Contains("--mca btl_tcp_if_include 10."));
}

TEST_CASE("the network between hosts is found even if the interfaces have different names") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      kDocker +
      "nsenter --net=/run/rig/h2/net sh -c 'ip link set eth0 down; ip link set eth0 name ib0; "
      "ip link set ib0 up'; exec " +
      kVerboseJob + kTcpProgram));
  CheckWorks(result);
  CHECK_THAT(result.err, Contains("dtrun: network of h2: ib0 (virtual, 10."));
}

TEST_CASE("hosts in different networks use one network that contains both") {
  if (Skipped()) return;
  const CommandResult result =
      Run(ScriptOnHosts(kDocker + "net=10.77.7; " + kMoveH2 + "exec " + kVerboseJob + kTcpProgram));
  CheckWorks(result);
  CHECK_THAT(result.err, Contains("dtrun: the job uses 10."));
}

TEST_CASE("for hosts in distant networks Open MPI gets a list of networks to exclude") {
  if (Skipped()) return;
  const CommandResult result = Run(
      ScriptOnHosts(kDocker + "net=192.168.77; " + kMoveH2 + "exec " + kVerboseJob + kTcpProgram));
  CheckWorks(result);
  CHECK_THAT(result.err, Contains("--mca btl_tcp_if_exclude 127.0.0.0/8,172.17.0.0/16 "));
}

TEST_CASE("a user's network parameters for Open MPI are kept") {
  if (Skipped()) return;
  const CommandResult result = Run(
      ScriptOnHosts("export OMPI_MCA_btl_tcp_if_exclude=lo; exec " + kVerboseJob + kTcpProgram));
  CheckWorks(result);
  CHECK_THAT(
      result.err, Contains("Open MPI uses the networks that btl_tcp_if_exclude says") &&
                      !Contains("if_include 10."));
}

// Renames eth1 of h2. Both hosts have docker0.
const std::string kRenameOnH2 =
    kDocker +
    "nsenter --net=/run/rig/h2/net sh -c 'ip link set eth1 down; ip link set eth1 name ib0; "
    "ip link set ib0 up'; ";

TEST_CASE("a named interface means its network on hosts with another name for it") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      kRenameOnH2 + "exec " + kVerboseJob + "--network-interfaces eth1 " + kTcpProgram,
      {"--nics", "eth0,eth1"}));
  CheckWorks(result);
  CHECK_THAT(
      result.err, Contains("dtrun: network of h2: ib0 (virtual, 10.") &&
                      Contains("as --network-interfaces says; not eth0 (virtual, 10."));
}

TEST_CASE("interface names from different hosts are enough if every host has one of them") {
  if (Skipped()) return;
  // This host has no ib0. Its eth0 is in another network than ib0 of h2.
  const CommandResult result = Run(ScriptOnHosts(
      kRenameOnH2 + "ip link set eth1 down; ip link set eth1 name ib7; ip link set ib7 up; exec " +
          kVerboseJob + "--network-interfaces ib0,ib7 " + kTcpProgram,
      {"--nics", "eth0,eth1"}));
  CheckWorks(result);
  CHECK_THAT(
      result.err, Contains("dtrun: network of h1: ib7 (virtual, 10.") &&
                      Contains("dtrun: network of h2: ib0 (virtual, 10."));
}

TEST_CASE("--network-interfaces accepts a network address") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      kRenameOnH2 +
          "net=$(ip -4 -o address show eth1 | awk '{print $4}' | cut -d. -f1-3).0/24; "
          "echo $net; exec " +
          kVerboseJob + "--network-interfaces $net " + kTcpProgram,
      {"--nics", "eth0,eth1"}));
  CheckWorks(result);
  const std::string network = result.out.substr(0, result.out.find('\n'));
  CHECK_THAT(
      result.err, Contains("--mca btl_tcp_if_include " + network + " ") &&
                      Contains("dtrun: network of h2: ib0 (virtual, 10."));
}

void CheckRefused(const CommandResult& result, int code, const std::string& line) {
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == code);
  CHECK(result.out == "");
  CHECK_THAT(result.err, Contains("dtrun: " + line));
}

TEST_CASE("a host without the wanted interface is reported before any rank starts") {
  if (Skipped()) return;
  const std::string job = "exec launcher/dtrun -H h1:1,h2:1 --network-interfaces ";
  const CommandResult lacks = Run(ScriptOnHosts(
      "nsenter --net=/run/rig/h2/net ip address flush dev eth1; " + job + "eth1 echo started",
      {"--nics", "eth0,eth1"}));
  CheckRefused(lacks, 69, "host h2 has no interface for --network-interfaces eth1, which is 10.");
  CHECK_THAT(lacks.err, Contains("/24 here; found eth0 (virtual, 10."));
  CheckRefused(
      Run(ScriptOnHosts(job + "192.168.200.0/24 echo started")), 69,
      "host h1 has no interface for --network-interfaces 192.168.200.0/24; found eth0 (virtual");
  CheckRefused(
      Run(ScriptOnHosts(job + "eth7 echo started")), 2,
      "--network-interfaces eth7: no host has such an interface with an IPv4 address; h1 has eth0");
  CheckRefused(
      Run(ScriptOnHosts(kDocker + job + "docker0 echo started")), 69,
      "hosts h1 and h2 cannot reach each other through docker0: both have the address "
      "172.17.0.1; choose other networks with --network-interfaces\n");
  CheckRefused(
      Run(ScriptOnHosts(job + "eth0 --mpi-args '--mca btl_tcp_if_exclude lo' echo started")), 2,
      "found --network-interfaces together with btl_tcp_if_exclude of Open MPI; expected one of "
      "the two\n");
}

TEST_CASE("MASTER_ADDR is an address of the first host that the other hosts reach") {
  if (Skipped()) return;
  // As on Debian, a host's own name means a loopback address that no other host can use.
  const CommandResult result = Run(ScriptOnHosts(
      kDocker +
      "sed 's/.* h1$/127.0.1.1 h1/' /etc/hosts >$TMPDIR/hosts; "
      "mount --bind $TMPDIR/hosts /etc/hosts; hostname -I | cut -d' ' -f1; exec "
      "launcher/dtrun --tag none -H h1:1,h2:1 sh -c '[ $RANK = 1 ] && echo $MASTER_ADDR || true'"));
  CAPTURE(result.out, result.err);
  const std::string first = result.out.substr(0, result.out.find('\n') + 1);
  CHECK_THAT(first, Catch::StartsWith("10."));
  CHECK(result.out == first + first);
}

TEST_CASE("a dry run shows the networks of this host") {
  if (Skipped()) return;
  const CommandResult result =
      Run(ScriptOnHosts(kDocker + "exec launcher/dtrun --dry-run -H h1:1,h2:1 true"));
  CHECK(result.exit_code == 0);
  CHECK_THAT(
      result.out, Contains("--mca btl_tcp_if_include 10.") &&
                      Contains("\nnetwork of this host: eth0 (virtual, 10.") &&
                      Contains("\nthe job uses 10."));
}

}  // namespace
