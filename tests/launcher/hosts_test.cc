#include "launcher/hosts/hosts.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Hosts = std::vector<Host>;
using Placement = std::vector<HostSlots>;

TEST_CASE("a host list gives hosts and their slots") {
  CHECK(ParseHosts("h1:2,[::1]:3") == Hosts{{"h1", 2}, {"[::1]", 3}});
  CHECK(ParseHosts("node-1.example.org:16") == Hosts{{"node-1.example.org", 16}});
}

TEST_CASE("the number of slots in a host list is optional") {
  CHECK(ParseHosts("a,[fd00::2],b_c:2") == Hosts{{"a", 0}, {"[fd00::2]", 0}, {"b_c", 2}});
}

TEST_CASE("an invalid host list is refused") {
  const std::string text = GENERATE(
      as<std::string>(), "", ",", "a,,b", "a:", "a:0", "a:-2", "a:x", "a:1:2", "a:2 ", ":2",
      "a:1000001", "a:99999999999999999999", "-oProxyCommand=touch:1", "a;touch x:1", "a b:1",
      "[::1:2", "[]:2", "[zz::1]:2", "[::1]x:2", "::1", "user@host:2", "a:600000,b:600000");
  CAPTURE(text);
  CHECK_THROWS_AS(ParseHosts(text), UsageError);
  CHECK_THROWS_AS(ParseHosts(std::string(300, 'h') + ":1"), UsageError);
}

TEST_CASE("an error in a host list is reported with its item and column") {
  CHECK_THROWS_WITH(ParseHosts("node1:2,node2:x"), Contains("node2:x (column 9)"));
  CHECK_THROWS_WITH(ParseHosts("a:1,b:1,a:2"), Contains("a:2 (column 9)") && Contains("twice"));
}

TEST_CASE("a very long number of slots is refused in a short message") {
  try {
    ParseHosts("a:" + std::string(1 << 20, '9'));
    FAIL("it was read");
  } catch (const UsageError& error) {
    CHECK(std::string(error.what()).size() < 300);
  }
}

TEST_CASE("ranks fill the hosts in order and an unused host is not part of the job") {
  const Hosts hosts = {{"a", 2}, {"b", 3}, {"c", 1}};
  CHECK(PlaceRanks(hosts, 1) == Placement{{"a", 1}});
  CHECK(PlaceRanks(hosts, 4) == Placement{{"a", 2}, {"b", 2}});
  CHECK(PlaceRanks(hosts, 6) == Placement{{"a", 2}, {"b", 3}, {"c", 1}});
}

TEST_CASE("more ranks than slots are refused with both numbers") {
  CHECK_THROWS_WITH(
      PlaceRanks({{"localhost", 2}}, 3),
      "requested 3 ranks, but the host list has 2 slots (localhost:2); --oversubscribe lets ranks "
      "share slots");
}

TEST_CASE("with --oversubscribe extra ranks go to the hosts in turn up to max_slots") {
  const Hosts hosts = {{"a", 2, 3}, {"b", 1}};
  CHECK(PlaceRanks(hosts, 2, true) == Placement{{"a", 2}});
  CHECK(PlaceRanks(hosts, 4, true) == Placement{{"a", 3}, {"b", 1}});
  CHECK(PlaceRanks(hosts, 9, true) == Placement{{"a", 3}, {"b", 6}});
  CHECK_THROWS_WITH(
      PlaceRanks({{"a", 1, 2}}, 3, true),
      "requested 3 ranks, but the host list has 2 slots at most (a:2)");
}

TEST_CASE("this machine is recognized by its names") {
  for (const char* name : {"localhost", "127.0.0.1", "[::1]", "me", "me.example", "me.example.org"})
    CHECK(IsThisMachine(name, "me.example.org"));
  for (const char* name : {"you", "me.example.com", "me.exam", "10.0.0.1"})
    CHECK_FALSE(IsThisMachine(name, "me.example.org"));
}

TEST_CASE("a host file in the format of Open MPI or Horovod is read") {
  CHECK(
      ParseHostfile(
          "f",
          "# a comment\n"
          "\n"
          "node1 slots=4 max_slots=8   # another\n"
          "  node2.example.org\tslots = 2\n"
          "node3:3\n"
          "[fd00::4]:2 max-slots=2\n"
          "node5") == Hosts{
                          {"node1", 4, 8, "f:3"},
                          {"node2.example.org", 2, 0, "f:4"},
                          {"node3", 3, 0, "f:5"},
                          {"[fd00::4]", 2, 2, "f:6"},
                          {"node5", 0, 0, "f:7"}});
}

TEST_CASE("a host file may have Windows line ends and a byte order mark") {
  CHECK(
      ParseHostfile("f", "\xef\xbb\xbfh1 slots=1\r\nh2 slots=2\r\n") ==
      Hosts{{"h1", 1, 0, "f:1"}, {"h2", 2, 0, "f:2"}});
}

TEST_CASE("an error in a host file is reported with its place and the found and expected text") {
  const auto [text, place, found, expected] =
      GENERATE(table<std::string, std::string, std::string, std::string>({
          {"h1\nh2 slots=abc", "f:2:10:", "abc", "from 1 to 1000000"},
          {"h1 slots=0", "f:1:10:", "0", "from 1 to 1000000"},
          {"h1 slots=-2", "f:1:10:", "-2", "from 1 to 1000000"},
          {"h1 slots=", "f:1:10:", "nothing", "a number of slots"},
          {"h1 slots", "f:1:9:", "no '='", "slots=N"},
          {"h1 slot=2", "f:1:4:", "slot", "slots=N or max_slots=N"},
          {"h1 4", "f:1:4:", "4", "slots=N or max_slots=N"},
          {"h1 slots=1 slots=2", "f:1:12:", "slots twice", "slots once"},
          {"h1 slots=3 max_slots=2", "f:1:1:", "slots=3", "no more slots than max_slots"},
          {"h1:x", "f:1:4:", "x", "a number of slots"},
          {"h1\n\nh1 slots=2", "f:3:1:", "h1 again", "the first is at f:1"},
          {"-oProxyCommand=x", "f:1:1:", "-oProxyCommand", "a host of letters"},
          {"a;b", "f:1:1:", "a;b", "a host of letters"},
          {"", "f:1:1:", "the end", "a host"},
          {"# nothing\n# here\n", "f:3:1:", "the end", "a host"},
          {"a slots=900000\nb slots=900000", "f:2:1:", "1800000 slots", "at most 1000000"},
      }));
  CAPTURE(text);
  CHECK_THROWS_WITH(
      ParseHostfile("f", text), StartsWith(place) && Contains(found) && Contains(expected));
}

TEST_CASE("a very long line in a host file is refused in a short message") {
  try {
    ParseHostfile("f", "h1\n" + std::string(1 << 20, 'x'));
    FAIL("it was read");
  } catch (const UsageError& error) {
    CHECK_THAT(error.what(), StartsWith("f:2:4097: found a line of 1048576 characters"));
    CHECK(std::string(error.what()).size() < 200);
  }
}

}  // namespace
}  // namespace dtrun::launcher
