#include "launcher/hosts/hosts.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Hosts = std::vector<Host>;
using Placement = std::vector<HostSlots>;

TEST_CASE("a host list names hosts and their slots") {
  CHECK(ParseHosts("h1:2,[::1]:3") == Hosts{{"h1", 2}, {"[::1]", 3}});
  CHECK(ParseHosts("node-1.example.org:16") == Hosts{{"node-1.example.org", 16}});
}

TEST_CASE("a host without a number does not say its slots") {
  CHECK(ParseHosts("a,[fd00::2],b_c:2") == Hosts{{"a", 0}, {"[fd00::2]", 0}, {"b_c", 2}});
}

TEST_CASE("what is no host list is refused") {
  const std::string text = GENERATE(
      as<std::string>(), "", ",", "a,,b", "a:", "a:0", "a:-2", "a:x", "a:1:2", "a:2 ", ":2",
      "a:1000001", "a:99999999999999999999", "-oProxyCommand=touch:1", "a;touch x:1", "a b:1",
      "[::1:2", "[]:2", "[zz::1]:2", "[::1]x:2", "::1", "user@host:2", "a:600000,b:600000");
  CAPTURE(text);
  CHECK_THROWS_AS(ParseHosts(text), UsageError);
  CHECK_THROWS_AS(ParseHosts(std::string(300, 'h') + ":1"), UsageError);
}

TEST_CASE("a wrong host list is shown by item and column") {
  CHECK_THROWS_WITH(ParseHosts("node1:2,node2:x"), Contains("node2:x (column 9)"));
  CHECK_THROWS_WITH(ParseHosts("a:1,b:1,a:2"), Contains("a:2 (column 9)") && Contains("twice"));
}

TEST_CASE("a megabyte of slots is refused in a line that can be read") {
  try {
    ParseHosts("a:" + std::string(1 << 20, '9'));
    FAIL("it was read");
  } catch (const UsageError& error) {
    CHECK(std::string(error.what()).size() < 300);
  }
}

TEST_CASE("ranks fill the hosts in order, and an unused host is not part of the job") {
  const Hosts hosts = {{"a", 2}, {"b", 3}, {"c", 1}};
  CHECK(PlaceRanks(hosts, 1) == Placement{{"a", 1}});
  CHECK(PlaceRanks(hosts, 4) == Placement{{"a", 2}, {"b", 2}});
  CHECK(PlaceRanks(hosts, 6) == Placement{{"a", 2}, {"b", 3}, {"c", 1}});
}

TEST_CASE("more ranks than slots are refused with both numbers") {
  CHECK_THROWS_WITH(
      PlaceRanks({{"localhost", 2}}, 3),
      "requested 3 ranks, but the host list has 2 slots (localhost:2); --oversubscribe lets ranks "
      "share them");
}

TEST_CASE("ranks beyond the slots are dealt out in turns, up to what a host bears") {
  const Hosts hosts = {{"a", 2, 3}, {"b", 1}};
  CHECK(PlaceRanks(hosts, 2, true) == Placement{{"a", 2}});
  CHECK(PlaceRanks(hosts, 4, true) == Placement{{"a", 3}, {"b", 1}});
  CHECK(PlaceRanks(hosts, 9, true) == Placement{{"a", 3}, {"b", 6}});
  CHECK_THROWS_WITH(
      PlaceRanks({{"a", 1, 2}}, 3, true),
      "requested 3 ranks, but the host list has 2 slots at most (a:2)");
}

TEST_CASE("this machine is known by its names") {
  for (const char* name : {"localhost", "127.0.0.1", "[::1]", "me", "me.example.org"})
    CHECK(IsThisMachine(name, "me.example.org"));
  for (const char* name : {"you", "me.example.com", "10.0.0.1"})
    CHECK_FALSE(IsThisMachine(name, "me.example.org"));
}

}  // namespace
}  // namespace dtrun::launcher
