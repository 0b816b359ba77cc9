// What the kernel says of interfaces.

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "launcher/networks/network_interfaces.h"
#include "tests/support/subprocess.h"

namespace dtrun::launcher {
namespace {

TEST_CASE("an interface is what the kernel's folder of it says, whatever its name") {
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

TEST_CASE("this machine has loopback") {
  const auto interfaces = OwnInterfaces();
  CHECK(std::any_of(interfaces.begin(), interfaces.end(), [](const Interface& interface) {
    return interface.address == "127.0.0.1" && interface.kind == InterfaceKind::kLoopback;
  }));
}

TEST_CASE("addresses are numbers") {
  CHECK(Ipv4("10.1.2.3") == 0x0a010203u);
  CHECK(Ipv4Text(0x0a010203u) == "10.1.2.3");
  for (const char* text : {"", "10.1.2", "::1", "10.1.2.256", "h1"})
    CHECK(Ipv4(text) == std::nullopt);
}

}  // namespace
}  // namespace dtrun::launcher
