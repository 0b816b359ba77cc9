// Faults on purpose (--inject): their text, and when they happen.

#include <signal.h>

#include <catch2/catch.hpp>

#include "launcher/plan/fault_plan.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using std::chrono::milliseconds;
using Kind = Fault::Kind;

const std::vector<base::HostSlots> kFaultHosts = {{"h1", 2}, {"h2", 2}};

std::vector<Fault> Faults(const std::string& text) { return ParseFaults(text, 4, kFaultHosts); }

std::string RefusalOfFaults(const std::string& text) {
  try {
    Faults(text);
  } catch (const LaunchError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a list of faults names what happens to which rank or host, and when") {
  const std::vector<Fault> faults = Faults(
      "kill rank 1 at step 7; stop rank 2 for 0.5s at 9s;slow  rank 3 by 2x; drop host h2 at 20s;");
  REQUIRE(faults.size() == 4);
  CHECK(faults[0] == Fault{.rank = 1, .step = 7, .text = "kill rank 1 at step 7"});
  CHECK((faults[1].kind == Kind::kStop && faults[1].duration == milliseconds(500)));
  CHECK(faults[1].at == std::chrono::seconds(9));
  CHECK((faults[2].kind == Kind::kSlow && faults[2].factor == 2 && faults[2].at.count() == 0));
  CHECK(faults[2].text == "slow rank 3 by 2x");
  CHECK(
      (faults[3].kind == Kind::kDrop && faults[3].host == "h2" &&
       faults[3].at == std::chrono::seconds(20)));
}

TEST_CASE("a corrupted bucket belongs to a step, and the rank damages it itself") {
  const std::vector<Fault> faults = Faults(
      "corrupt bucket 2 of rank 1 at step 4; kill rank 0 at 5s; corrupt bucket 0 of rank 3 at step "
      "9");
  CHECK(
      CorruptionsIn(faults) ==
      std::vector<base::Corruption>{{.rank = 1, .step = 4, .bucket = 2}, {.rank = 3, .step = 9}});
  CHECK(
      RefusalOfFaults("corrupt bucket 0 of rank 1 at 4s")
          .find("expected a step like 7 after 'at'") != std::string::npos);
  const FaultInjector::Time start = {};
  FaultInjector injector(Faults("corrupt bucket 2 of rank 1 at step 4"), start);
  CHECK(injector.wants_progress());
  CHECK(injector.Take(start, {{.rank = 1, .step = 3}}).empty());
  const auto actions = injector.Take(start, {{.rank = 1, .step = 4}});
  REQUIRE(actions.size() == 1);
  CHECK(actions[0].fault == "corrupt bucket 2 of rank 1 at step 4");
  CHECK((actions[0].signal == 0 && actions[0].host.empty()));
  CHECK(injector.Take(start, {{.rank = 1, .step = 5}}).empty());
}

TEST_CASE("a wrong fault is refused with the word that is wrong and what is expected") {
  CHECK(
      RefusalOfFaults("kill rank 4 at step 7") ==
      "--inject: in 'kill rank 4 at step 7' found '4'; expected a rank from 0 to 3");
  CHECK(
      RefusalOfFaults("kill rank 1") == "--inject: in 'kill rank 1' found the end; expected 'at'");
  CHECK(
      RefusalOfFaults("break rank 1") ==
      "--inject: in 'break rank 1' found 'break'; expected kill, stop, slow, corrupt, drop or "
      "random");
  CHECK(
      RefusalOfFaults("drop host h9 at 1s") ==
      "--inject: in 'drop host h9 at 1s' found 'h9'; expected one of the hosts h1, h2");
  CHECK(
      RefusalOfFaults("kill rank 1 at 5m").find("found '5m'; expected a time like 5s") !=
      std::string::npos);
  CHECK(
      RefusalOfFaults("slow rank 1 by 0.5x").find("expected a factor like 2x") !=
      std::string::npos);
  CHECK(RefusalOfFaults("kill rank 1 at 5s now").find("found 'now'") != std::string::npos);
  CHECK(RefusalOfFaults(" ; ").find("--inject: found no fault; expected for example") == 0);
}

TEST_CASE("the same seed gives the same random faults") {
  const std::vector<Fault> faults = Faults("random 20 in 60s seed 7");
  CHECK(faults == Faults("random 20 in 60s seed 7"));
  CHECK_FALSE(faults == Faults("random 20 in 60s seed 8"));
  REQUIRE(faults.size() == 20);
  for (const Fault& fault : faults) {
    CHECK((fault.rank >= 0 && fault.rank < 4));
    CHECK(fault.at <= std::chrono::seconds(60));
    CHECK(Faults(fault.text)[0].kind == fault.kind);
  }
}

TEST_CASE("a fault happens once, at its step or time") {
  const FaultInjector::Time start{};
  FaultInjector injector(Faults("kill rank 1 at step 7; drop host h2 at 2s"), start);
  CHECK(injector.wants_progress());
  CHECK(injector.Take(start, {{.rank = 1, .step = 6}, {.rank = 0, .step = 9}}).empty());
  const auto kill = injector.Take(start, {{.rank = 1, .step = 7}});
  REQUIRE(kill.size() == 1);
  CHECK((kill[0].rank == 1 && kill[0].signal == SIGKILL));
  CHECK(kill[0].fault == "kill rank 1 at step 7");
  CHECK(injector.Take(start, {{.rank = 1, .step = 8}}).empty());
  CHECK_FALSE(injector.wants_progress());
  CHECK(injector.Pause(start + milliseconds(1900)) == milliseconds(100));
  const auto drop = injector.Take(start + std::chrono::seconds(2), {});
  REQUIRE(drop.size() == 1);
  CHECK((drop[0].host == "h2" && drop[0].signal == 0));
}

TEST_CASE("a stopped rank goes on after the time, and a slow one is stopped again and again") {
  const FaultInjector::Time start{};
  FaultInjector stops(Faults("stop rank 2 for 3s at 1s"), start);
  CHECK(stops.Take(start + std::chrono::seconds(1), {})[0].signal == SIGSTOP);
  CHECK(stops.Take(start + milliseconds(3999), {}).empty());
  CHECK(stops.Take(start + std::chrono::seconds(4), {})[0].signal == SIGCONT);
  CHECK(stops.Take(start + std::chrono::seconds(9), {}).empty());

  FaultInjector slows(Faults("slow rank 3 by 3x"), start);
  CHECK(slows.Take(start, {})[0].signal == SIGCONT);
  int stopped_ms = 0;
  bool is_stopped = false;
  for (int ms = 1; ms < 1200; ++ms) {
    for (const auto& action : slows.Take(start + milliseconds(ms), {}))
      is_stopped = action.signal == SIGSTOP;
    stopped_ms += is_stopped ? 1 : 0;
  }
  CHECK(stopped_ms > 750);
  CHECK(stopped_ms < 850);
}

}  // namespace
}  // namespace dtrun::launcher
