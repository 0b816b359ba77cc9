// Which of their networks hosts use for a job.

#include <catch2/catch.hpp>
#include <string>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

const std::string kVerboseJob = "$PWD/launcher/dtrun --verbose --tag none -H h1:1,h2:1 ";
// MPI over TCP alone carries it.
const std::string kTcpProgram = "--mpi-args '--mca btl tcp,self --mca pml ob1' examples/sgd";

// What Docker makes on every host: another network of the same addresses.
const std::string kDocker =
    "for h in h1 h2; do nsenter --net=/run/rig/$h/net sh -c 'ip link add docker0 type bridge; "
    "ip address add 172.17.0.1/16 dev docker0; ip link set docker0 up'; done; ";

// h2 moves to another network, `$net`.2, to which h1 knows the way.
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
  // Open MPI's ways to say that it does not like a list of networks.
  CHECK_THAT(result.err, !Contains("WARNING: "));
}

TEST_CASE("a bridge with the same addresses on both hosts is kept out of a job") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(kDocker + "exec " + kVerboseJob + kTcpProgram));
  CheckWorks(result);
  CHECK_THAT(
      result.err, Contains("dtrun: network of h2: eth0 (virtual, 10.") &&
                      Contains("; not docker0 (a bridge, 172.17.0.1/16)\n") &&
                      Contains("--mca btl_tcp_if_include 10."));
}

TEST_CASE("the network between hosts is found whatever each host calls it") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      kDocker +
      "nsenter --net=/run/rig/h2/net sh -c 'ip link set eth0 down; ip link set eth0 name ib0; "
      "ip link set ib0 up'; exec " +
      kVerboseJob + kTcpProgram));
  CheckWorks(result);
  CHECK_THAT(result.err, Contains("dtrun: network of h2: ib0 (virtual, 10."));
}

TEST_CASE("hosts in different networks are told one that holds both") {
  if (Skipped()) return;
  const CommandResult result =
      Run(ScriptOnHosts(kDocker + "net=10.77.7; " + kMoveH2 + "exec " + kVerboseJob + kTcpProgram));
  CheckWorks(result);
  CHECK_THAT(result.err, Contains("dtrun: Open MPI uses 10."));
}

TEST_CASE("hosts in networks far apart are told what to leave out") {
  if (Skipped()) return;
  const CommandResult result = Run(
      ScriptOnHosts(kDocker + "net=192.168.77; " + kMoveH2 + "exec " + kVerboseJob + kTcpProgram));
  CheckWorks(result);
  CHECK_THAT(result.err, Contains("--mca btl_tcp_if_exclude 127.0.0.0/8,172.17.0.0/16 "));
}

TEST_CASE("what the user has told Open MPI of networks stays") {
  if (Skipped()) return;
  const CommandResult result = Run(
      ScriptOnHosts("export OMPI_MCA_btl_tcp_if_exclude=lo; exec " + kVerboseJob + kTcpProgram));
  CheckWorks(result);
  CHECK_THAT(
      result.err, Contains("Open MPI uses the networks that btl_tcp_if_exclude says") &&
                      !Contains("if_include 10."));
}

// h2 calls eth1 by another name, and has docker0 as h1 has.
const std::string kRenameOnH2 =
    kDocker +
    "nsenter --net=/run/rig/h2/net sh -c 'ip link set eth1 down; ip link set eth1 name ib0; "
    "ip link set ib0 up'; ";

TEST_CASE("a named interface stands for its network on hosts that call it otherwise") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      kRenameOnH2 + "exec " + kVerboseJob + "--network-interfaces eth1 " + kTcpProgram,
      {"--nics", "eth0,eth1"}));
  CheckWorks(result);
  CHECK_THAT(
      result.err, Contains("dtrun: network of h2: ib0 (virtual, 10.") &&
                      Contains("as --network-interfaces says; not eth0 (virtual, 10."));
}

TEST_CASE("names that some hosts have are enough where every host has one") {
  if (Skipped()) return;
  // eth0 of this host is another network than ib0, which it does not have.
  const CommandResult result = Run(ScriptOnHosts(
      kRenameOnH2 + "ip link set eth1 down; ip link set eth1 name ib7; ip link set ib7 up; exec " +
          kVerboseJob + "--network-interfaces ib0,ib7 " + kTcpProgram,
      {"--nics", "eth0,eth1"}));
  CheckWorks(result);
  CHECK_THAT(
      result.err, Contains("dtrun: network of h1: ib7 (virtual, 10.") &&
                      Contains("dtrun: network of h2: ib0 (virtual, 10."));
}

TEST_CASE("a network may be named by its addresses") {
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

TEST_CASE("a host that has nothing of what was named is named before any rank starts") {
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

TEST_CASE("the ranks meet at an address of the first host that the others reach") {
  if (Skipped()) return;
  // As Debian writes it: a host calls itself by an address that no other one can use.
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

TEST_CASE("a dry run shows the networks as this host sees them") {
  if (Skipped()) return;
  const CommandResult result =
      Run(ScriptOnHosts(kDocker + "exec launcher/dtrun --dry-run -H h1:1,h2:1 true"));
  CHECK(result.exit_code == 0);
  CHECK_THAT(
      result.out, Contains("--mca btl_tcp_if_include 10.") &&
                      Contains("\nnetwork of this host: eth0 (virtual, 10.") &&
                      Contains("\nOpen MPI uses 10."));
}

}  // namespace
