// The simulated hosts of with_hosts.

#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

std::string Mounts() {
  std::ifstream file("/proc/self/mountinfo");
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Whether a process is in this network namespace, such as "net:[4026532000]".
bool HasProcess(const std::string& network_namespace) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code ignored;
    if (std::filesystem::read_symlink(entry.path() / "ns/net", ignored) == network_namespace)
      return true;
  }
  return false;
}

bool IsEmptyWithin(seconds timeout, const std::string& network_namespace) {
  const auto deadline = Clock::now() + timeout;
  while (HasProcess(network_namespace)) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

TEST_CASE("hosts have their own names and reach each other by ssh without a prompt") {
  if (Skipped()) return;
  const CommandResult two = Run(ScriptOnHosts("hostname; ssh h2 hostname; ssh h2 ssh h1 hostname"));
  CHECK(two.out == "h1\nh2\nh1\n");
  CHECK(two.err == "");
  const CommandResult three =
      Run(ScriptOnHosts("hostname; ssh c hostname; ssh c ssh b hostname", {"--names", "a,b,c"}));
  CHECK(three.out == "a\nc\nb\n");
  CHECK(three.err == "");
}

TEST_CASE("hosts share no processes and no shared memory and no temporary files") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "sleep 1000 & touch /dev/shm/mine $TMPDIR/mine; "
      "ssh h2 'ls /dev/shm $TMPDIR; kill -0 '$!' 2>/dev/null && grep sleep /proc/'$!'/cmdline'"));
  CHECK(result.out == "/dev/shm:\n\n/run/tmp:\n");
}

TEST_CASE("a host has loopback and exactly the given interfaces") {
  if (Skipped()) return;
  const CommandResult result =
      Run(ScriptOnHosts("ssh h2 ls /sys/class/net", {"--nics", "eth0,eth1"}));
  CHECK(result.out == "eth0\neth1\nlo\n");
}

TEST_CASE("with_hosts passes on the command's words and exit code") {
  if (Skipped()) return;
  const CommandResult result = Run(OnHosts({"sh", "-c", "echo \"$1\"; exit 7", "sh", "a  '$b"}));
  CHECK(result.out == "a  '$b\n");
  CHECK(result.exit_code == 7);
  CHECK(Run(ScriptOnHosts("kill -9 $$")).exit_code == 128 + SIGKILL);
  CHECK(Run(OnHosts({"no_such_program"})).exit_code == 127);
  CHECK(Run(OnHosts({"true"}, {"--names", "h1,h1"})).exit_code == 2);
}

TEST_CASE("with_hosts leaves no process and no mount when the command ends or the rig is killed") {
  if (Skipped()) return;
  const auto [signal, exit_code] =
      GENERATE(table<int, int>({{0, 3}, {SIGTERM, 128 + SIGTERM}, {SIGKILL, 128 + SIGKILL}}));
  const std::string mounts = Mounts();
  Subprocess rig(ScriptOnHosts(
      "readlink /proc/self/ns/net; ssh h2 readlink /proc/self/ns/net; ssh h2 sleep 1000 & "
      "setsid sleep 1000 & sleep " +
      std::string(signal == 0 ? "0.2; exit 3" : "1000; exit 3")));
  REQUIRE(rig.WaitForLines(2));
  std::string first, second;
  std::istringstream(rig.out()) >> first >> second;
  REQUIRE(first != second);
  REQUIRE(HasProcess(first));
  REQUIRE(HasProcess(second));

  if (signal != 0) rig.Signal(signal);
  CHECK(rig.Wait().exit_code == exit_code);
  CHECK(IsEmptyWithin(seconds(10), first));
  CHECK(IsEmptyWithin(seconds(10), second));
  CHECK(Mounts() == mounts);
  CHECK(!std::filesystem::exists("/run/rig"));
}

TEST_CASE("two rigs at the same time do not see each other") {
  if (Skipped()) return;
  Subprocess first(ScriptOnHosts("echo up; ssh h2 sleep 2; ssh h2 hostname"));
  REQUIRE(first.WaitForLines(1));
  CHECK(Run(ScriptOnHosts("ssh h2 hostname")).out == "h2\n");
  CHECK(first.Wait().out == "up\nh2\n");
}

// Of 2.4 MB, two bursts of 128 KiB pass at once. The rest takes 1.7 s. Load only lengthens that.
TEST_CASE("--rate limits a link in both directions") {
  if (Skipped()) return;
  const std::string script = GENERATE(
      "head -c 2400000 /dev/zero | ssh h2 'cat >/dev/null'",
      "ssh h2 head -c 2400000 /dev/zero >/dev/null");
  const auto start = Clock::now();
  CHECK(Run(ScriptOnHosts(script, {"--rate", "10mbit"})).exit_code == 0);
  CHECK(Clock::now() - start >= std::chrono::milliseconds(1700));
}

TEST_CASE("a host can be switched off or unplugged") {
  if (Skipped()) return;
  const std::string fault =
      GENERATE("ssh h2 kill 1", "nsenter --net=/run/rig/h2/net ip link set eth0 down");
  const CommandResult result =
      Run(ScriptOnHosts(fault + "; ssh -o ConnectTimeout=1 h2 true; echo $?; hostname"));
  CHECK(result.out == "255\nh1\n");
}

}  // namespace
