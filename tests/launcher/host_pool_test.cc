// The hosts that a job may use: the user's program that names them, and the pauses between
// attempts.

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "launcher/job/elastic_hosts.h"
#include "launcher/support/launch_error.h"
#include "tests/support/subprocess.h"

namespace dtrun::launcher {
namespace {

using std::chrono::milliseconds;

// A program for the shell.
class DiscoveryScript {
 public:
  explicit DiscoveryScript(const std::string& text) {
    folder_.Write("discover", "#!/bin/sh\n" + text);
    chmod(path().c_str(), 0700);
  }
  std::string path() const { return folder_.path() + "/discover"; }

 private:
  testing::TemporaryFolder folder_;
};

std::string WhyNotDiscovered(const std::string& program, int slots = 1) {
  try {
    DiscoverHosts(program, 0, slots, std::chrono::seconds(1));
  } catch (const LaunchError& error) {
    CHECK(error.code() == ExitCode::kUnavailable);
    return error.what();
  }
  return "";
}

TEST_CASE("the program may print hosts with and without slots, as in a host file") {
  const DiscoveryScript script("echo node1:2\necho '# comment'\necho node2\necho node3 slots=4\n");
  const std::vector<Host> hosts = DiscoverHosts(script.path(), 3, 9, std::chrono::seconds(10));
  REQUIRE(hosts.size() == 3);
  CHECK((hosts[0].name == "node1" && hosts[0].slots == 2));
  CHECK((hosts[1].name == "node2" && hosts[1].slots == 3));
  CHECK((hosts[2].name == "node3" && hosts[2].slots == 4));
}

TEST_CASE("a program that fails, prints other text or names too few hosts is refused by name") {
  const DiscoveryScript fails("echo node1; echo no network >&2; exit 3");
  CHECK(
      WhyNotDiscovered(fails.path()) ==
      "--host-discovery-script " + fails.path() +
          ": failed: no network; expected at least 1 slot within 1 s "
          "(--elastic-timeout)");
  const DiscoveryScript garbled("echo 'node1 slots=x'");
  CHECK(WhyNotDiscovered(garbled.path()).find(": output:1:") != std::string::npos);
  const DiscoveryScript few("echo node1:2");
  CHECK(
      WhyNotDiscovered(few.path(), 3) ==
      "--host-discovery-script " + few.path() +
          ": found 2 slots; expected at least 3 slots within 1 s "
          "(--elastic-timeout)");
  CHECK(
      WhyNotDiscovered("/nowhere/discover").find("/nowhere/discover: cannot be run; ") !=
      std::string::npos);
}

TEST_CASE("a program without output names no host") {
  const DiscoveryScript none("exit 0");
  CHECK(WhyNotDiscovered(none.path()).find(": found 0 slots; ") != std::string::npos);
}

TEST_CASE("a host that failed is tried again after longer and longer pauses") {
  HostPool pool;
  pool.SetHosts({{"h1", 2}, {"h2", 2}});
  const HostPool::Time begin{};
  CHECK(pool.Candidates(begin).size() == 2);
  pool.Failed("h1", begin);
  CHECK(pool.Candidates(begin + milliseconds(900)).size() == 1);
  CHECK(pool.Candidates(begin + milliseconds(1100)).size() == 2);
  pool.Failed("h1", begin);
  CHECK(pool.Candidates(begin + milliseconds(1900)).size() == 1);
  for (int i = 0; i < 20; ++i) pool.Failed("h1", begin);
  CHECK(pool.Candidates(begin + std::chrono::seconds(59)).size() == 1);
  CHECK(pool.Candidates(begin + std::chrono::seconds(61)).size() == 2);
  CHECK(pool.Names("h1"));
  CHECK_FALSE(pool.Names("h3"));
}

}  // namespace
}  // namespace dtrun::launcher
