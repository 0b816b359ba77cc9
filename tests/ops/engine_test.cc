// Timeouts, stall warnings and the flight record of the engine, on a clock that the test controls.

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/flight_record.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/segment.h"
#include "ops/engine/flight_recorder.h"
#include "ops/engine/progress_engine.h"
#include "tests/support/manual_clock.h"
#include "tests/support/subprocess.h"

namespace {

using namespace dtrun;
using namespace dtrun::ops;
using namespace std::chrono_literals;
using base::FlightState;
using Catch::Matchers::Contains;
using Lines = std::vector<std::string>;

// The state of an operation that its peers decide.
struct Fate {
  std::atomic<bool> arrived{false}, done{false}, advances{false};
  std::optional<ErrorCode> error;
  std::vector<int> missing = {1};
};

class FakeOperation : public Operation {
 public:
  FakeOperation(
      std::shared_ptr<const Members> members, uint64_t sequence, const Call& call,
      std::shared_ptr<Fate> fate)
      : Operation(std::move(members), sequence, call), fate_(std::move(fate)) {}
  Progress Advance() override {
    if (fate_->error) throw Error(*fate_->error, "lost");
    if (fate_->arrived) SetMoving();
    if (fate_->advances.exchange(false)) return Progress::kSome;
    return fate_->done ? Progress::kDone : Progress::kNone;
  }
  std::vector<int> Missing() const override {
    return fate_->arrived ? std::vector<int>{} : fate_->missing;
  }

 private:
  std::shared_ptr<Fate> fate_;
};

// Rank 0 of four, with the lines that its engine logs.
struct Rank {
  testing::ManualClock clock;
  std::mutex mutex;
  Lines warnings, errors;  // guarded by mutex
  std::shared_ptr<FlightRecorder> recorder;
  std::vector<std::shared_ptr<FlightRecorder>> peers;
  int given_up = 0;
  std::shared_ptr<const Members> world = std::make_shared<const Members>(Members::World(4));
  std::unique_ptr<Engine> engine;
  uint64_t sequence = 0;

  // Null: no record.
  explicit Rank(std::shared_ptr<FlightRecorder> own = FlightRecorder::InMemory(0, "h"))
      : recorder(std::move(own)) {
    for (int r = 0; r < 4; ++r) peers.push_back(FlightRecorder::InMemory(r, "h"));
    engine = std::make_unique<Engine>(
        EngineOptions{
            .may_spin = false,
            .recorder = recorder,
            .peer_records = [this](int rank) -> std::optional<base::FlightRecord> {
              if (rank == 0) return recorder->Read();
              return peers[static_cast<size_t>(rank)]->Read();
            },
            .on_give_up = [this](const std::string&) { ++given_up; }},
        clock, [this](base::LogLevel level, const std::string& line) {
          std::lock_guard lock(mutex);
          (level == base::LogLevel::kWarning ? warnings : errors).push_back(line);
        });
  }

  Work Start(
      std::shared_ptr<Fate> fate, CollectiveKind kind = CollectiveKind::kBarrier,
      std::shared_ptr<const Members> members = nullptr) {
    Call call{};
    call.before = call.after = 1;
    call.root = 3;
    call.kind = static_cast<uint8_t>(kind);
    return engine->Start(
        std::make_unique<FakeOperation>(members ? members : world, ++sequence, call, fate));
  }

  Lines Warnings() {
    std::lock_guard lock(mutex);
    return warnings;
  }
  Lines Errors() {
    std::lock_guard lock(mutex);
    return errors;
  }
};

std::string ErrorOf(Work& work, ErrorCode code = ErrorCode::kTimeout) {
  try {
    return work.Test() ? "finished" : "not yet";
  } catch (const Error& error) {
    return error.code() == code ? error.what()
                                : base::Text("code ", static_cast<int>(error.code()));
  }
}

std::vector<int> RanksOf(Work& work) {
  try {
    work.Test();
    return {};
  } catch (const Error& error) {
    CHECK(error.operation() == "barrier");
    return error.ranks();
  }
}

template <typename Condition>
bool Soon(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (!condition() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(1ms);
  }
  return condition();
}

// Advances the clock in steps of 1 s while a thread waits and looks at the clock. One large step
// would count as a stopped process. Every second look checks for timeouts, and the first counted
// look may have begun before the step. So each step waits for three looks.
void Pass(Rank& rank, std::chrono::seconds time) {
  auto& doorbell = *reinterpret_cast<Doorbell*>(rank.engine->doorbell_segment()->data());
  for (; time > 0s && !rank.engine->gave_up(); time -= 1s) {
    rank.clock.Advance(1s);
    const int64_t looks = rank.clock.looks() + 3;
    while (rank.clock.looks() < looks && !rank.engine->gave_up()) {
      doorbell.Ring();
      std::this_thread::yield();
    }
  }
}

TEST_CASE("an operation that a rank never calls is reported once and then fails") {
  Rank rank;
  Work work = rank.Start(std::make_shared<Fate>());
  rank.clock.Advance(29s);
  CHECK(ErrorOf(work) == "not yet");
  CHECK(rank.Warnings().empty());
  for (int i = 0; i < 10; ++i) {
    rank.clock.Advance(1s);
    CHECK(ErrorOf(work) == "not yet");
  }
  CHECK(
      rank.Warnings() == Lines{"waiting for 30 s: collective #1, barrier, waits for rank 1 to call "
                               "it; rank 1 called nothing yet"});
  rank.clock.Advance(560s);
  CHECK(ErrorOf(work) == "not yet");
  rank.clock.Advance(1s);
  CHECK_THAT(
      ErrorOf(work),
      Catch::StartsWith("gave up after 600 s: collective #1, barrier, waits for rank 1 to call"));
  CHECK(RanksOf(work) == std::vector<int>{1});
  CHECK(rank.Warnings().size() == 1);
  CHECK(rank.engine->gave_up());
  CHECK(rank.given_up == 1);
}

TEST_CASE("a stall warning names each missing rank with its last operation") {
  Rank rank;
  Call barrier{}, broadcast{};
  barrier.kind = static_cast<uint8_t>(CollectiveKind::kBarrier);
  broadcast.kind = static_cast<uint8_t>(CollectiveKind::kBroadcast);
  broadcast.dtype = static_cast<uint8_t>(DType::kF32);
  broadcast.before = broadcast.after = 1;
  broadcast.count = 7;
  const base::TimePoint begin = rank.clock.Now();
  FlightRecorder& one = *rank.peers[1];
  one.End(one.Start("world", 11, barrier, begin), FlightState::kDone, begin);
  rank.peers[3]->Start("world", 9, broadcast, begin - 14s);
  const auto fate = std::make_shared<Fate>();
  fate->missing = {1, 3};
  rank.sequence = 11;
  rank.clock.Advance(1s);
  Work work = rank.Start(fate);
  rank.clock.Advance(30s);
  CHECK(ErrorOf(work) == "not yet");
  CHECK(
      rank.Warnings() ==
      Lines{
          "waiting for 30 s: collective #12, barrier, waits for ranks 1 and 3 to call it; rank 1 "
          "last finished collective #11, barrier, 31 s ago; rank 3 is in collective #9, broadcast "
          "(f32, 7 elements, root 0), since 45 s"});
}

TEST_CASE("missing ranks with the same last operation are named together") {
  Rank rank;
  const auto fate = std::make_shared<Fate>();
  fate->missing = {1, 2, 3};
  Work work = rank.Start(fate);
  rank.clock.Advance(30s);
  work.Test();
  REQUIRE(rank.Warnings().size() == 1);
  CHECK_THAT(rank.Warnings()[0], Catch::EndsWith("; ranks 1, 2 and 3 called nothing yet"));
  for (const int r : {2, 3}) {
    rank.peers[static_cast<size_t>(r)]->Start("world/1", 1, Call{}, rank.clock.Now());
  }
  rank.clock.Advance(570s);
  CHECK_THAT(
      ErrorOf(work), Contains("; rank 1 called nothing yet; ranks 2 and 3 are in collective #1"));
}

TEST_CASE("flight records show the missing rank if the backend cannot") {
  Rank rank;
  Call barrier{};
  barrier.kind = static_cast<uint8_t>(CollectiveKind::kBarrier);
  const auto fate = std::make_shared<Fate>();
  fate->missing = {};
  Work work = rank.Start(fate);
  rank.peers[1]->Start("world", 1, barrier, rank.clock.Now());
  rank.peers[3]->Start("world", 2, barrier, rank.clock.Now());
  rank.peers[2]->Start("world/1", 1, barrier, rank.clock.Now());
  rank.clock.Advance(30s);
  work.Test();
  CHECK(
      rank.Warnings() == Lines{"waiting for 30 s: collective #1, barrier, waits for rank 2 to call "
                               "it; rank 2 is in collective #1 of world/1, barrier, since 30 s"});
}

TEST_CASE("collectives that wait for the same ranks cause one warning") {
  Rank rank;
  std::vector<Work> works;
  for (int i = 0; i < 5; ++i) works.push_back(rank.Start(std::make_shared<Fate>()));
  works.push_back(rank.Start(std::make_shared<Fate>(), CollectiveKind::kReceive));
  for (int i = 0; i < 100; ++i) {
    rank.clock.Advance(1s);
    for (Work& work : works) CHECK(ErrorOf(work) == "not yet");
  }
  REQUIRE(rank.Warnings().size() == 2);
  CHECK_THAT(rank.Warnings()[0], Contains("collective #1,"));
  CHECK_THAT(rank.Warnings()[1], Contains("message #6, receive"));
}

TEST_CASE("a wait ends at the time limit") {
  Rank rank;
  Work work = rank.Start(std::make_shared<Fate>());
  std::string error;
  const int64_t looks = rank.clock.looks() + 2;
  std::thread waiter([&] {
    try {
      work.Wait();
    } catch (const Error& thrown) {
      error = thrown.what();
    }
  });
  REQUIRE(Soon([&] { return rank.clock.looks() >= looks; }));
  Pass(rank, 30s);
  CHECK(Soon([&] { return rank.Warnings().size() == 1; }));
  Pass(rank, 570s);
  waiter.join();
  CHECK_THAT(error, Catch::StartsWith("gave up after 600 s: collective #1, barrier"));
  CHECK(rank.Errors().empty());
}

TEST_CASE("the time of a wait is recorded during the wait") {
  const testing::TemporaryFolder folder;
  const std::string path = base::FlightFile(folder.path(), 0);
  Rank rank(FlightRecorder::InFile(path, 0, "h"));
  const auto waited_s = [&] { return base::ReadFlightProgress(path)->waited_ns / 1'000'000'000; };
  const auto fate = std::make_shared<Fate>();
  Work work = rank.Start(fate);
  std::thread waiter([&] { work.Wait(); });
  // The waiting thread may look at the clock before or after each advance.
  CHECK(Soon([&] {
    rank.clock.Advance(1ms);
    return base::ReadFlightProgress(path)->waited_ns > 0;
  }));
  rank.clock.Advance(5s);
  CHECK(Soon([&] { return waited_s() >= 5; }));
  fate->done = true;
  waiter.join();
  rank.clock.Advance(100s);
  CHECK(waited_s() < 100);
}

TEST_CASE("the engine's thread gives up an unwaited operation and logs the error") {
  Rank rank;
  rank.engine->StartThread();
  rank.Start(std::make_shared<Fate>());
  Pass(rank, 30s);
  CHECK(Soon([&] { return rank.Warnings().size() == 1; }));
  Pass(rank, 570s);
  CHECK(Soon([&] { return rank.Errors().size() == 1; }));
  CHECK_THAT(rank.Errors()[0], Catch::StartsWith("gave up after 600 s: collective #1"));
  CHECK(rank.engine->gave_up());
}

TEST_CASE("an hour with the process stopped during a wait is not a stall") {
  Rank rank;
  rank.engine->StartThread();
  rank.Start(std::make_shared<Fate>());
  Pass(rank, 20s);
  const int64_t looks = rank.clock.looks() + 2;
  rank.clock.Advance(1h);
  REQUIRE(Soon([&] { return rank.clock.looks() >= looks; }));
  Pass(rank, 5s);
  CHECK(rank.Warnings().empty());
  CHECK(rank.Errors().empty());
  Pass(rank, 10s);
  CHECK(Soon([&] { return rank.Warnings().size() == 1; }));
  CHECK_THAT(rank.Warnings()[0], Catch::StartsWith("waiting for 30 s: collective #1"));
}

TEST_CASE("an hour with the process stopped before a wait is not a stall") {
  Rank rank;
  const auto fate = std::make_shared<Fate>();
  Work work = rank.Start(fate);
  rank.clock.Advance(1h);
  std::thread waiter([&] { work.Wait(); });
  const int64_t looks = rank.clock.looks() + 2;
  REQUIRE(Soon([&] { return rank.clock.looks() >= looks; }));
  Pass(rank, 20s);
  CHECK(rank.Warnings().empty());
  Pass(rank, 15s);
  CHECK(Soon([&] { return rank.Warnings().size() == 1; }));
  CHECK_THAT(rank.Warnings()[0], Catch::StartsWith("waiting for 30 s: collective #1"));
  fate->done = true;
  waiter.join();
  CHECK(rank.Errors().empty());
}

TEST_CASE("an unwaited operation is given up while another operation is started or waited for") {
  Rank rank;
  const auto other = std::make_shared<const Members>(rank.world->Subset({0, 1}, "/1"));
  rank.Start(std::make_shared<Fate>());
  rank.clock.Advance(600s);
  SECTION("started") {
    const auto fate = std::make_shared<Fate>();
    fate->done = true;
    CHECK(rank.Start(fate, CollectiveKind::kBarrier, other).Test());
  }
  SECTION("waited for") {
    const auto fate = std::make_shared<Fate>();
    std::thread waiter([&] { rank.Start(fate, CollectiveKind::kBarrier, other).Wait(); });
    CHECK(Soon([&] { return rank.Errors().size() == 1; }));
    fate->done = true;
    waiter.join();
  }
  CHECK(rank.Errors().size() == 1);
  CHECK(rank.given_up == 1);
}

TEST_CASE("an operation that advances does not time out") {
  Rank rank;
  const auto fate = std::make_shared<Fate>();
  Work work = rank.Start(fate);
  fate->arrived = true;
  for (int i = 0; i < 100; ++i) {
    fate->advances = true;
    rank.clock.Advance(20s);
    CHECK(ErrorOf(work) == "not yet");
  }
  CHECK(rank.Warnings().empty());
  rank.clock.Advance(30s);
  CHECK(ErrorOf(work) == "not yet");
  rank.clock.Advance(30s);
  CHECK(ErrorOf(work) == "not yet");
  REQUIRE(rank.Warnings().size() == 1);
  CHECK_THAT(rank.Warnings()[0], Contains("waits for other ranks to finish it"));
  rank.clock.Advance(600s);
  CHECK_THAT(ErrorOf(work), Catch::StartsWith("gave up after"));
}

TEST_CASE("the time limit counts from when the operation advanced last") {
  Rank rank;
  const auto fate = std::make_shared<Fate>();
  Work work = rank.Start(fate);
  const int64_t looks = rank.clock.looks() + 2;
  bool failed = false;
  std::thread waiter([&] {
    try {
      work.Wait();
    } catch (const Error&) {
      failed = true;
    }
  });
  REQUIRE(Soon([&] { return rank.clock.looks() >= looks; }));
  Pass(rank, 5s);
  fate->advances = true;
  Pass(rank, 590s);
  CHECK_FALSE(rank.engine->gave_up());
  Pass(rank, 15s);
  const bool in_time = rank.engine->gave_up();
  Pass(rank, 40s);
  waiter.join();
  CHECK(in_time);
  CHECK(failed);
}

TEST_CASE("an operation that peers finished before the next look is not late") {
  Rank rank;
  const auto fate = std::make_shared<Fate>();
  Work work = rank.Start(fate);
  rank.clock.Advance(700s);
  fate->done = true;
  CHECK(ErrorOf(work) == "finished");
  CHECK(rank.Warnings().empty());
  CHECK_FALSE(rank.engine->gave_up());
}

TEST_CASE("after a timeout all calls on the communicator fail and other communicators go on") {
  Rank rank;
  const auto other = std::make_shared<const Members>(rank.world->Subset({0, 1}, "/1"));
  Work first = rank.Start(std::make_shared<Fate>());
  rank.clock.Advance(300s);
  Work second = rank.Start(std::make_shared<Fate>());
  const auto elsewhere = std::make_shared<Fate>();
  Work third = rank.Start(elsewhere, CollectiveKind::kBarrier, other);
  rank.clock.Advance(300s);
  CHECK_THAT(ErrorOf(first), Catch::StartsWith("gave up after 600 s"));
  CHECK_THAT(
      ErrorOf(second), Catch::StartsWith("collective #2, barrier, cannot be done any more: gave up "
                                         "after 600 s: collective #1, barrier"));
  Work later = rank.Start(std::make_shared<Fate>());
  CHECK_THAT(ErrorOf(later), Catch::StartsWith("collective #4, barrier, cannot be done any more"));
  CHECK(ErrorOf(third) == "not yet");
  elsewhere->done = true;
  CHECK(ErrorOf(third) == "finished");
  CHECK(rank.given_up == 1);
}

// Ranks 0 and 2 are on one host, 1 and 3 on another.
std::shared_ptr<const Members> OnTwoHosts() {
  Members members = Members::World(4);
  members.hosts = {"h1", "h2", "h1", "h2"};
  return std::make_shared<const Members>(std::move(members));
}

// Checks that an operation that `leaver` has not called fails after the time `after`.
void CheckDeserted(
    Rank& rank, const std::shared_ptr<const Members>& members, int leaver,
    std::chrono::seconds after) {
  const auto fate = std::make_shared<Fate>();
  fate->missing = {leaver};
  Work work = rank.Start(fate, CollectiveKind::kBarrier, members);
  CHECK(ErrorOf(work) == "not yet");
  rank.clock.Advance(after);
  CHECK_THAT(
      ErrorOf(work, ErrorCode::kPeerLost),
      Catch::EndsWith(members->List({leaver}) + " has called Shutdown"));
  CHECK(RanksOf(work) == std::vector<int>{leaver});
}

TEST_CASE("an operation waits 10 s for the last calls of a rank that left on another host") {
  Rank rank;
  std::vector<int> leavers;
  rank.engine->WatchLeavers({.self = 0, .leave = [] {}, .leavers = [&] { return leavers; }});
  const auto called = std::make_shared<Fate>();
  Work first = rank.Start(called, CollectiveKind::kBarrier, OnTwoHosts());
  leavers = {1};
  CHECK(ErrorOf(first) == "not yet");
  rank.clock.Advance(9s);
  CHECK(ErrorOf(first) == "not yet");
  called->arrived = true;  // the farewell has overtaken this call
  rank.clock.Advance(20s);
  CHECK(ErrorOf(first) == "not yet");
  called->done = true;
  CHECK(ErrorOf(first) == "finished");
  CheckDeserted(rank, OnTwoHosts(), 1, 10s);
}

TEST_CASE("an operation fails within 1 s after a missing rank left on the same host") {
  Rank rank;
  rank.engine->WatchLeavers(
      {.self = 0, .leave = [] {}, .leavers = [] { return std::vector<int>{2}; }});
  CheckDeserted(rank, OnTwoHosts(), 2, 1s);
}

TEST_CASE("a lost peer ends the communicator and a mismatch does not") {
  const ErrorCode code = GENERATE(ErrorCode::kPeerLost, ErrorCode::kMismatch);
  Rank rank;
  const auto fate = std::make_shared<Fate>();
  fate->error = code;
  Work work = rank.Start(fate);
  CHECK(ErrorOf(work, code) == "lost");
  CHECK(rank.engine->gave_up() == (code == ErrorCode::kPeerLost));
  Work later = rank.Start(std::make_shared<Fate>());
  CHECK(
      ErrorOf(later, code) == (code == ErrorCode::kPeerLost
                                   ? "collective #2, barrier, cannot be done any more: lost"
                                   : "not yet"));
}

TEST_CASE("the loss of peers ends all operations, also of other communicators and later ones") {
  Rank rank;
  Work first = rank.Start(std::make_shared<Fate>());
  Work other = rank.Start(
      std::make_shared<Fate>(), CollectiveKind::kBarrier,
      std::make_shared<const Members>(Members::World(4)));
  std::thread waiter([&] { CHECK_THROWS_AS(first.Wait(), Error); });
  rank.engine->LosePeers(Error(ErrorCode::kPeerLost, "rank 2 on h was killed", {2}));
  waiter.join();
  rank.engine->LosePeers(Error(ErrorCode::kPeerLost, "rank 3 on h was killed", {3}));
  Work later = rank.Start(std::make_shared<Fate>());
  for (Work* work : {&first, &other, &later}) {
    CHECK(ErrorOf(*work, ErrorCode::kPeerLost) == "rank 2 on h was killed");
    CHECK(RanksOf(*work) == std::vector{2});
  }
  CHECK(rank.engine->gave_up());
}

class Bystander : public Driver {
 public:
  bool Advance() override { return false; }
  base::TimePoint Look(base::TimePoint) override { return base::TimePoint::max(); }
  void LosePeers() override { ++losses; }

  int losses = 0;
};

TEST_CASE("a driver hears once that all peers are lost, also if it comes later") {
  Rank rank;
  const auto before = std::make_shared<Bystander>(), after = std::make_shared<Bystander>();
  rank.engine->AddDriver(before);
  CHECK(before->losses == 0);
  rank.engine->LosePeers(Error(ErrorCode::kPeerLost, "rank 2 on h was killed", {2}));
  rank.engine->LosePeers(Error(ErrorCode::kPeerLost, "rank 3 on h was killed", {3}));
  rank.engine->AddDriver(after);
  CHECK(before->losses == 1);
  CHECK(after->losses == 1);
}

TEST_CASE("the flight record has each state of an operation up to its end") {
  Rank rank;
  const auto fate = std::make_shared<Fate>(), stuck = std::make_shared<Fate>();
  Work work = rank.Start(fate), lost = rank.Start(stuck);
  const auto state = [&](size_t i) { return rank.recorder->Read().operations[i].state; };
  CHECK(state(0) == FlightState::kStarted);
  fate->arrived = true;
  CHECK_FALSE(work.Test());
  CHECK(state(0) == FlightState::kMoving);
  rank.clock.Advance(5s);
  fate->done = true;
  CHECK(work.Test());
  CHECK(state(0) == FlightState::kDone);
  const auto operation = rank.recorder->Read().operations[0];
  CHECK(operation.end_ns - operation.start_ns == 5'000'000'000);

  CHECK(state(1) == FlightState::kStarted);
  CHECK(rank.recorder->Read().gave_up.empty());
  rank.clock.Advance(595s);
  const std::string error = ErrorOf(lost);
  CHECK(state(1) == FlightState::kFailed);
  CHECK(rank.recorder->Read().gave_up == error);
}

TEST_CASE("an engine works without a recorder") {
  Rank rank(nullptr);
  const auto fate = std::make_shared<Fate>();
  Work work = rank.Start(fate), stuck = rank.Start(std::make_shared<Fate>());
  fate->arrived = fate->done = true;
  CHECK(ErrorOf(work) == "finished");
  rank.clock.Advance(600s);
  CHECK_THAT(ErrorOf(stuck), Catch::StartsWith("gave up after 600 s"));
}

// Starts each operation after the previous operation has ended.
class Relay : public Driver {
 public:
  explicit Relay(Rank& rank) : rank_(rank) {}
  bool Advance() override {
    bool advanced = false;
    while (started < wanted && work_.Done()) {
      work_ = rank_.Start(fate);
      ++started;
      advanced = true;
    }
    return advanced;
  }
  base::TimePoint Look(base::TimePoint now) override {
    ++looks;
    return now + 1ms;
  }

  std::shared_ptr<Fate> fate = std::make_shared<Fate>();
  std::atomic<int> started{0}, wanted{0}, looks{0};

 private:
  Rank& rank_;
  Work work_;
};

TEST_CASE("every poll and wait of the engine advances a driver until it is removed") {
  Rank rank;
  const auto relay = std::make_shared<Relay>(rank);
  relay->fate->done = true;
  rank.engine->AddDriver(relay);
  relay->wanted = 3;
  rank.engine->Poll();
  CHECK(relay->started == 3);
  // A wait for another operation advances the driver, and a wait for the driver's own result.
  relay->wanted = 4;
  const auto other = std::make_shared<Fate>();
  other->done = true;
  rank.Start(other).Wait();
  rank.engine->Poll();
  CHECK(relay->started == 4);
  relay->wanted = 5;
  rank.engine->WaitUntil([&] { return relay->started == 5; });
  rank.engine->RemoveDriver(*relay);
  relay->wanted = 6;
  rank.engine->Poll();
  CHECK(relay->started == 5);
}

TEST_CASE(
    "a waiting thread lets drivers look at the clock and ends its sleep for their next look") {
  Rank rank;
  const auto relay = std::make_shared<Relay>(rank);
  rank.engine->AddDriver(relay);
  rank.engine->WaitUntil([&] { return relay->looks >= 3; });
  CHECK(relay->looks >= 3);
}

TEST_CASE("a stall warning and the timeout include the purpose of the operation") {
  Rank rank;
  Work work = rank.Start(std::make_shared<Fate>());
  work.SetPurpose([] { return std::string("it carries the mail"); });
  rank.clock.Advance(30s);
  CHECK_FALSE(work.Test());
  REQUIRE(rank.Warnings().size() == 1);
  CHECK_THAT(rank.Warnings()[0], Contains("to call it") && Contains("; it carries the mail"));
  rank.clock.Advance(570s);
  CHECK_THROWS_WITH(work.Test(), Contains("; it carries the mail"));
}

}  // namespace
