// The choice of the networks that carry a job.

#include "launcher/networks/network_choice.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "launcher/networks/network_survey.h"
#include "launcher/support/launch_error.h"
#include "tests/support/subprocess.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

const Interface kLo = {"lo", "127.0.0.1", 8, 0, InterfaceKind::kLoopback};
const Interface kDocker = {"docker0", "172.17.0.1", 16, 0, InterfaceKind::kBridge};

Interface Device(const std::string& name, const std::string& address, int prefix = 24) {
  return {name, address, prefix, 1000, InterfaceKind::kDevice};
}

TEST_CASE("a bridge with the same address on both hosts is left out") {
  const NetworkChoice choice = ChooseNetworks(
      {{"h1", {kLo, Device("eth0", "10.1.2.1"), kDocker}, {"", "10.1.2.1"}},
       {"h2", {kLo, kDocker, Device("ens5", "10.1.2.2")}, {"10.1.2.2", ""}}});
  CHECK(choice.include == Words{"10.1.2.0/24"});
  CHECK(choice.exclude.empty());
  CHECK(choice.addresses == Words{"10.1.2.1", "10.1.2.2"});
  CHECK(
      choice.reasons ==
      Words{
          "network of h1: eth0 (a device, 10.1.2.1/24), the way to the other hosts; not docker0 "
          "(a bridge, 172.17.0.1/16)",
          "network of h2: ens5 (a device, 10.1.2.2/24), the way to the other hosts; not docker0 "
          "(a bridge, 172.17.0.1/16)",
          "the job uses 10.1.2.0/24"});
}

TEST_CASE("a bridge that leads to the other hosts is preferred to a hardware interface") {
  const Interface bridge = {"br0", "10.1.2.1", 24, 0, InterfaceKind::kBridge};
  const NetworkChoice choice = ChooseNetworks(
      {{"h1", {bridge, Device("bmc", "169.254.0.2", 16)}, {"", "10.1.2.1"}},
       {"h2", {Device("eth0", "10.1.2.2"), Device("bmc", "169.254.0.2", 16)}, {"10.1.2.2", ""}}});
  CHECK(choice.include == Words{"10.1.2.0/24"});
}

TEST_CASE("hosts in different networks share the smallest network that contains them all") {
  const NetworkChoice choice = ChooseNetworks(
      {{"h1", {Device("eth0", "10.1.2.1"), kDocker}, {"", "10.1.2.1", "10.1.2.1"}},
       {"h2", {Device("eth0", "10.1.3.2"), kDocker}, {"10.1.3.2", "", "10.1.3.2"}},
       {"h3", {Device("eth0", "10.1.9.1", 28)}, {"10.1.9.1", "10.1.9.1", ""}}});
  CHECK(choice.include == Words{"10.1.0.0/20"});
}

TEST_CASE("if no network separates the chosen interfaces then Open MPI gets a list to exclude") {
  const NetworkChoice far = ChooseNetworks(
      {{"h1", {Device("eth0", "10.1.2.1"), kDocker}, {"", "10.1.2.1"}},
       {"h2", {Device("eth0", "192.168.7.2"), kDocker}, {"192.168.7.2", ""}}});
  CHECK(far.include.empty());
  CHECK(far.exclude == Words{"127.0.0.0/8", "172.17.0.0/16"});
  CHECK(far.addresses == Words{"10.1.2.1", "192.168.7.2"});
  const NetworkChoice between = ChooseNetworks(
      {{"h1", {Device("eth0", "172.16.0.1"), kDocker}, {"", "172.16.0.1"}},
       {"h2", {Device("eth0", "172.18.0.2"), kDocker}, {"172.18.0.2", ""}}});
  CHECK(between.exclude == Words{"127.0.0.0/8", "172.17.0.0/16"});
}

TEST_CASE("a network that a host needs is never excluded") {
  const NetworkChoice choice = ChooseNetworks(
      {{"h1", {Device("eth0", "172.17.0.9", 16)}, {"", "172.17.0.9"}},
       {"h2", {Device("eth0", "10.0.0.2"), kDocker}, {"10.0.0.2", ""}}});
  CHECK(choice.include.empty());
  CHECK(choice.exclude.empty());
  CHECK_THAT(choice.reasons.back(), Contains("name the networks to use with --network-interfaces"));
}

TEST_CASE("without known routes hardware interfaces count and Open MPI excludes the others") {
  const NetworkChoice choice = ChooseNetworks(
      {{"h1", {kLo, Device("eth0", "10.1.2.1"), kDocker}, {"", ""}},
       {"h2", {Device("eth0", "10.1.2.2")}, {"", ""}}});
  CHECK(choice.include.empty());
  CHECK(choice.exclude == Words{"127.0.0.0/8", "172.17.0.0/16"});
  // A virtual interface is used if the host has no other, as in a container.
  const Interface veth = {"eth0", "10.1.2.1", 24, 0, InterfaceKind::kVirtual};
  CHECK(ChooseNetworks({{"h1", {kLo, veth}, {""}}}).exclude.empty());
  CHECK(ChooseNetworks({{"h1", {kLo, veth}, {""}}}).addresses == Words{"10.1.2.1"});
  CHECK(ChooseNetworks({{"h1", {}, {}}}).addresses == Words{""});
}

TEST_CASE("networks named by the user are used and a host without one is reported") {
  const std::vector<HostNetworks> hosts = {
      {"h1", {Device("eth0", "10.1.2.1"), Device("ib0", "10.9.0.1")}, {"", "10.1.2.1"}},
      {"h2", {Device("eth0", "10.1.2.2"), Device("ib7", "10.9.0.2")}, {"10.1.2.2", ""}}};
  for (const Words& wanted : {Words{"10.9.0.0/24"}, Words{"ib0"}}) {
    const NetworkChoice choice = UseNetworks(hosts, wanted, hosts[0].interfaces);
    CHECK(choice.include == Words{"10.9.0.0/24"});
    CHECK(choice.addresses == Words{"10.9.0.1", "10.9.0.2"});
  }
  CHECK_THROWS_WITH(
      UseNetworks(hosts, {"10.8.0.0/24"}, hosts[0].interfaces),
      "host h1 has no interface for --network-interfaces 10.8.0.0/24; found eth0 (a device, "
      "10.1.2.1/24), ib0 (a device, 10.9.0.1/24)");
  CHECK_THROWS_WITH(
      UseNetworks({hosts[0], {"h2", {hosts[1].interfaces[0]}, {}}}, {"ib0"}, hosts[0].interfaces),
      "host h2 has no interface for --network-interfaces ib0, which is 10.9.0.0/24 here; found "
      "eth0 (a device, 10.1.2.2/24)");
}

TEST_CASE("an interface name means all networks of that interface on this machine") {
  const std::vector<Interface> own = {
      kLo, Device("eth0", "10.1.2.1", 16), Device("eth0", "10.2.2.1", 16)};
  CHECK(
      WantedNetworks({"eth0", "192.168.7.0/24"}, own) ==
      Words{"10.1.0.0/16", "10.2.0.0/16", "192.168.7.0/24"});
  CHECK(WantedNetworks({"ib0"}, own).empty());
}

TEST_CASE("a name unknown on this machine means the interface of that name on other hosts") {
  const std::vector<HostNetworks> hosts = {
      {"h1", {Device("eth0", "10.1.2.1"), Device("ib0", "10.9.0.1"), kDocker}, {}},
      {"h2", {Device("eth0", "10.1.3.2"), Device("ib7", "10.9.1.2"), kDocker}, {}}};
  const NetworkChoice choice = UseNetworks(hosts, {"ib0", "ib7"}, {kLo});
  CHECK(choice.include == Words{"10.9.0.0/23"});
  CHECK(choice.addresses == Words{"10.9.0.1", "10.9.1.2"});
  CHECK_THROWS_AS(UseNetworks(hosts, {"ib0", "ib8"}, {kLo}), UsageError);
  CHECK_THROWS_WITH(
      UseNetworks(hosts, {"eth0", "ib8"}, {kLo}),
      Contains("--network-interfaces ib8: no host has such an interface") &&
          Contains("; h1 has eth0 (a device, 10.1.2.1/24), ib0 "));
}

TEST_CASE("hosts with the same address in the wanted network are refused by name") {
  const std::vector<HostNetworks> hosts = {
      {"h1", {Device("eth0", "10.1.2.1"), kDocker}, {}},
      {"h2", {Device("eth0", "10.1.2.2"), kDocker}, {}}};
  CHECK_THROWS_WITH(
      UseNetworks(hosts, {"docker0"}, hosts[0].interfaces),
      "hosts h1 and h2 cannot reach each other through docker0: both have the address "
      "172.17.0.1; choose other networks with --network-interfaces");
}

TEST_CASE("an address belongs to a network by its prefix") {
  CHECK(IsInNetwork("10.1.2.3", "10.1.0.0/16"));
  CHECK(IsInNetwork("10.1.2.3", "10.1.2.3/32"));
  CHECK(IsInNetwork("10.1.2.3", "0.0.0.0/0"));
  CHECK_FALSE(IsInNetwork("10.2.2.3", "10.1.0.0/16"));
  for (const char* text : {"", "10.1.0.0", "10.1.0.0/33", "10.1.0.0/x", "h1/8"})
    CHECK_FALSE(IsInNetwork("10.1.2.3", text));
  CHECK_FALSE(IsInNetwork("", "10.1.0.0/16"));
}

TEST_CASE("hosts learn each other's addresses from their ssh connections") {
  NetworkSurvey survey({"h1", "h2", "h3"}, {true, false, false});
  CHECK_FALSE(survey.complete());
  const auto facts = [](const Interface& interface, const std::string& ssh) {
    return nlohmann::json{{"interfaces", std::vector{interface}}, {"ssh", ssh}};
  };
  // On this machine, the ssh address belongs to the user's own terminal and is ignored.
  CHECK_FALSE(survey.HearFacts(0, facts(Device("e", "10.1.0.1"), "10.7.7.7 1 10.7.7.8 22")));
  CHECK_FALSE(survey.HearFacts(1, facts(Device("e", "10.1.0.2"), "10.1.0.1 5 10.1.0.2 22")));
  CHECK(survey.HearFacts(2, facts(Device("e", "10.1.0.3"), "10.1.0.1 5 10.1.0.3 22")));
  CHECK(survey.PeersOf(1) == nlohmann::json({"10.1.0.1", "", "10.1.0.3"}));
  CHECK(survey.PeersOf(0) == nlohmann::json({"", "10.1.0.2", "10.1.0.3"}));
  for (size_t host = 0; host < 3; ++host) {
    CHECK_FALSE(survey.complete());
    survey.HearRoutes(host, {"10.1.0.9", "", ""});
  }
  CHECK(survey.complete());
  CHECK_THROWS(NetworkSurvey({"h2"}, {false}).HearFacts(0, {{"ssh", 3}}));
}

TEST_CASE("a job on this machine alone needs no survey") {
  CHECK(NetworkSurvey({"localhost"}, {true}).complete());
}

TEST_CASE("loopback leads to no other host") {
  CHECK(SourceAddressTo("127.0.0.1") == "");
  CHECK(SourceAddressTo("no address") == "");
  CHECK(AddressesOfNames({"localhost"}, std::chrono::seconds(5)) == Words{"127.0.0.1"});
}

TEST_CASE("the kind of an interface comes from the kernel and not from its name") {
  const dtrun::testing::TemporaryFolder folder;
  for (const char* part :
       {"eth0/device", "docker7/device", "corp/bridge", "bond0/bonding", "eth0.5/lower_eth0",
        "veth1/lower_veth2", "veth2", "lo"})
    std::filesystem::create_directories(folder.path() + "/" + part);
  folder.Write("lo/type", "772\n");
  folder.Write("eth0/type", "1\n");
  const auto kind = [&](const char* name) { return KindOf(folder.path(), name); };
  CHECK(kind("eth0") == InterfaceKind::kDevice);
  CHECK(kind("docker7") == InterfaceKind::kDevice);
  CHECK(kind("bond0") == InterfaceKind::kDevice);
  CHECK(kind("eth0.5") == InterfaceKind::kDevice);
  CHECK(kind("corp") == InterfaceKind::kBridge);
  CHECK(kind("veth1") == InterfaceKind::kVirtual);
  CHECK(kind("nosuch") == InterfaceKind::kVirtual);
  CHECK(kind("lo") == InterfaceKind::kLoopback);
}

TEST_CASE("this machine has a loopback interface") {
  const auto interfaces = OwnInterfaces();
  CHECK(std::any_of(interfaces.begin(), interfaces.end(), [](const Interface& interface) {
    return interface.address == "127.0.0.1" && interface.kind == InterfaceKind::kLoopback;
  }));
}

TEST_CASE("IPv4 addresses are converted to numbers and back") {
  CHECK(Ipv4("10.1.2.3") == 0x0a010203u);
  CHECK(Ipv4Text(0x0a010203u) == "10.1.2.3");
  for (const char* text : {"", "10.1.2", "::1", "10.1.2.256", "h1"})
    CHECK(Ipv4(text) == std::nullopt);
}

TEST_CASE("an invalid --network-interfaces value is refused") {
  for (const char* text :
       {"", "eth0,", "10.1.0.0/", "10.1/16", "10.1.0.0/0", "a b", "-x", "fd00::/8"})
    CHECK_THROWS_AS(ParseNetworks(text), UsageError);
}

}  // namespace
}  // namespace dtrun::launcher
