#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/hosts/hosts.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Hosts = std::vector<Host>;

TEST_CASE("a host file is read as Open MPI's and Horovod's users write it") {
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

TEST_CASE("line ends of Windows and a byte order mark are understood") {
  CHECK(
      ParseHostfile("f", "\xef\xbb\xbfh1 slots=1\r\nh2 slots=2\r\n") ==
      Hosts{{"h1", 1, 0, "f:1"}, {"h2", 2, 0, "f:2"}});
}

TEST_CASE("what is wrong in a host file is shown with its place, what was found and expected") {
  const auto [text, place, found, expected] =
      GENERATE(table<std::string, std::string, std::string, std::string>({
          {"h1\nh2 slots=abc", "f:2:10:", "abc", "from 1 to 1000000"},
          {"h1 slots=0", "f:1:10:", "0", "from 1 to 1000000"},
          {"h1 slots=-2", "f:1:10:", "-2", "from 1 to 1000000"},
          {"h1 slots=", "f:1:10:", "nothing", "a number of slots"},
          {"h1 slots", "f:1:9:", "no '='", "slots=N"},
          {"h1 slot=2", "f:1:4:", "slot", "slots=N or max_slots=N"},
          {"h1 4", "f:1:4:", "4", "slots=N or max_slots=N"},
          {"h1 slots=1 slots=2", "f:1:12:", "slots once more", "once"},
          {"h1 slots=3 max_slots=2", "f:1:1:", "slots=3", "no more slots than max_slots"},
          {"h1:x", "f:1:4:", "x", "a number of slots"},
          {"h1\n\nh1 slots=2", "f:3:1:", "h1 again", "it stands at f:1"},
          {"-oProxyCommand=x", "f:1:1:", "-oProxyCommand", "a host of letters"},
          {"a;b", "f:1:1:", "a;b", "a host of letters"},
          {"", "f:1:1:", "the end", "a host"},
          {"# nothing\n# here\n", "f:3:1:", "the end", "a host"},
          {"a slots=900000\nb slots=900000", "f:2:1:", "more slots", "at most 1000000"},
      }));
  CAPTURE(text);
  CHECK_THROWS_WITH(
      ParseHostfile("f", text), StartsWith(place) && Contains(found) && Contains(expected));
}

TEST_CASE("a line of a megabyte is refused in a line that can be read") {
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
