#include "launcher/engines/engine_messages.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

namespace dtrun::launcher {
namespace {

constexpr char kSetpgid[] =
    "[h1:812] plm:rsh: Warning: setpgid(831,831) failed in parent with errno=Permission denied(13)";
constexpr char kEpoll[] =
    "[warn] Epoll MOD(1) on fd 27 failed. Old events were 6; read change was 0 (none): Bad file "
    "descriptor";

// A process that starts ranks, as far as its stderr goes.
struct Engine {
  explicit Engine(bool show_idle_warnings = false)
      : messages(
            poller, *FindLaunchEngine("mpirun"), show_idle_warnings,
            [this](std::string_view lines) { shown += lines; }) {}

  void Write(const std::string& text) {
    REQUIRE(write(messages.writer(), text.data(), text.size()) == ssize_t(text.size()));
    poller.Wait(std::chrono::milliseconds(0));
  }

  Poller poller;
  std::string shown;
  EngineMessages messages;
};

TEST_CASE("warnings of nothing are left out of what mpirun says, and nothing else is") {
  Engine engine;
  engine.Write(std::string("a host is lost\n\n") + kSetpgid + "\n" + kEpoll + "\nthe job ends\n");
  CHECK(engine.shown == "a host is lost\n\nthe job ends\n");
  engine.Write("plm:rsh: setpgid is fine\nsome [warn] Epoll text\n");
  CHECK(
      engine.shown ==
      "a host is lost\n\nthe job ends\nplm:rsh: setpgid is fine\nsome [warn] Epoll text\n");
}

TEST_CASE("--verbose shows warnings of nothing too") {
  Engine engine(true);
  engine.Write(std::string(kSetpgid) + "\n");
  CHECK(engine.shown == std::string(kSetpgid) + "\n");
}

TEST_CASE("a line is shown when it is whole, or when nothing more can come") {
  Engine engine;
  engine.Write("ssh: connect to host h2");
  CHECK(engine.shown.empty());
  engine.Write(" port 22\nlast words");
  CHECK(engine.shown == "ssh: connect to host h2 port 22\n");
  SECTION("the process has ended") { engine.messages.HandedOver(); }
  SECTION("another one still holds its stderr") {}
  engine.messages.Finish();
  CHECK(engine.shown == "ssh: connect to host h2 port 22\nlast words\n");
}

TEST_CASE("without a line's end, memory stays bounded") {
  Engine engine;
  for (int i = 0; i < 40; ++i) engine.Write(std::string(4096, 'x'));
  CHECK(engine.shown.size() >= 2 * 65536);
}

TEST_CASE("who writes while nothing can be shown is read later") {
  Engine engine;
  engine.messages.SetPaused(true);
  engine.Write("late\n");
  CHECK(engine.shown.empty());
  engine.messages.SetPaused(false);
  engine.poller.Wait(std::chrono::milliseconds(0));
  CHECK(engine.shown == "late\n");
}

TEST_CASE("once the process is gone nobody waits for its stderr in vain") {
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
