#include "launcher/engines/engine_messages.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/subprocess.h"

namespace dtrun::launcher {
namespace {

constexpr char kSetpgid[] =
    "[h1:812] plm:rsh: Warning: setpgid(831,831) failed in parent with errno=Permission denied(13)";
constexpr char kSetpgidOfOpenMpi5[] =
    "[h1:00041] plm:ssh: Warning: setpgid(44,44) failed in parent with errno=Permission denied(13)";
constexpr char kEpoll[] =
    "[warn] Epoll MOD(1) on fd 27 failed. Old events were 6; read change was 0 (none): Bad file "
    "descriptor";

// The stderr of a process that starts ranks.
struct Engine {
  explicit Engine(
      bool show_idle_warnings = false, const LaunchEngine& mpirun = *FindLaunchEngine("mpirun"))
      : messages(poller, mpirun, show_idle_warnings, [this](std::string_view lines) {
          shown += lines;
        }) {}

  void Write(const std::string& text) {
    REQUIRE(write(messages.writer(), text.data(), text.size()) == ssize_t(text.size()));
    poller.Wait(std::chrono::milliseconds(0));
  }

  Poller poller;
  std::string shown;
  EngineMessages messages;
};

TEST_CASE("only harmless warnings are left out of mpirun's messages") {
  Engine engine;
  engine.Write(std::string("a host is lost\n\n") + kSetpgid + "\n" + kEpoll + "\nthe job ends\n");
  engine.Write(std::string(kSetpgidOfOpenMpi5) + "\n");
  CHECK(engine.shown == "a host is lost\n\nthe job ends\n");
  engine.Write("plm:rsh: setpgid is fine\nsome [warn] Epoll text\n");
  CHECK(
      engine.shown ==
      "a host is lost\n\nthe job ends\nplm:rsh: setpgid is fine\nsome [warn] Epoll text\n");
}

TEST_CASE("--verbose also shows harmless warnings") {
  Engine engine(true);
  engine.Write(std::string(kSetpgid) + "\n");
  CHECK(engine.shown == std::string(kSetpgid) + "\n");
}

TEST_CASE("messages of Open MPI 5 between lines of dashes are left out") {
  const testing::TemporaryFolder folder;
  folder.Write("mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 5.0.8'\n", 0755);
  const bool verbose = GENERATE(false, true);
  Engine engine(verbose, FindLaunchEngine("mpirun")->VersionIn(folder.path()));
  const std::string dashes(74, '-'), message = dashes + "\nrank 1 has ended\n" + dashes + "\n";
  engine.Write("ssh: no route\n" + message + "[h1:1] [a@0,0] ACTIVATE JOB a@1 STATE INIT\n");
  engine.Write("Permission denied\n");
  const std::string shown = verbose ? message : "";
  CHECK(engine.shown == "ssh: no route\n" + shown + "Permission denied\n");
  CHECK_THAT(engine.messages.events(), Catch::Matchers::Contains("STATE INIT"));
}

TEST_CASE("a line of mpirun is shown when it is complete or at the end of the job") {
  Engine engine;
  engine.Write("ssh: connect to host h2");
  CHECK(engine.shown.empty());
  engine.Write(" port 22\nlast words");
  CHECK(engine.shown == "ssh: connect to host h2 port 22\n");
  SECTION("the process has ended") { engine.messages.HandedOver(); }
  SECTION("another process still holds the stderr") {}
  engine.messages.Finish();
  CHECK(engine.shown == "ssh: connect to host h2 port 22\nlast words\n");
}

TEST_CASE("a line without an end is shown in parts to bound the memory") {
  Engine engine;
  for (int i = 0; i < 40; ++i) engine.Write(std::string(4096, 'x'));
  CHECK(engine.shown.size() >= 2 * 65536);
}

TEST_CASE("messages written while output is paused are shown later") {
  Engine engine;
  engine.messages.SetPaused(true);
  engine.Write("late\n");
  CHECK(engine.shown.empty());
  engine.messages.SetPaused(false);
  engine.poller.Wait(std::chrono::milliseconds(0));
  CHECK(engine.shown == "late\n");
}

TEST_CASE("a closed stderr does not wake the poller") {
  Engine engine;
  engine.messages.HandedOver();
  engine.poller.Wait(std::chrono::milliseconds(0));
  engine.messages.SetPaused(false);  // as after every wait
  const auto begin = std::chrono::steady_clock::now();
  engine.poller.Wait(std::chrono::milliseconds(20));
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace dtrun::launcher
