// The reaction of a job to lost ranks that are started again: single rules, then random schedules
// of losses against a model of the ranks, their agents and the delays between them.

#include "launcher/job/recovery.h"

#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "base/text.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Lines = std::vector<std::string>;

constexpr int64_t kMs = 1'000'000;
const std::vector<base::HostSlots> kHosts = {{"h1", 2}, {"h2", 1}};

ExitRecord Working(int rank, int epoch = 0) {
  return {
      .rank = rank, .pid = 100 + rank, .start_ns = 1, .state = {.joined = true, .epoch = epoch}};
}
ExitRecord LostAt(int rank, int64_t at_ms) {
  ExitRecord record = Working(rank);
  record.end = RankEnd::kSignaled;
  record.value = SIGKILL;
  record.time_ns = at_ms * kMs;
  return record;
}
ExitRecord EndedAt(int rank, int code, int64_t at_ms, bool in_order = false) {
  ExitRecord record = Working(rank);
  record.end = RankEnd::kExited;
  record.value = code;
  record.time_ns = at_ms * kMs;
  record.in_order = in_order;
  return record;
}

TEST_CASE("a killed rank is started again in a new epoch, and a line tells when all go on") {
  Recovery recovery(2, kHosts);
  CHECK(recovery.Update({Working(0), Working(1), Working(2)}, 900 * kMs).lines.empty());
  const auto lost = recovery.Update({Working(0), LostAt(1, 1000), Working(2)}, 1005 * kMs);
  CHECK(
      lost.lines ==
      Lines{"rank 1 on h1 was killed by SIGKILL; the rank is started again (restart 1 of 2)"});
  REQUIRE(lost.epoch);
  CHECK(lost.epoch->number == 1);
  CHECK(lost.epoch->why == "rank 1 on h1 was killed by SIGKILL");
  CHECK(lost.restart == std::vector<int>{1});
  CHECK_FALSE(lost.end);
  // The record is the old one until the new process runs.
  const auto same = recovery.Update({Working(0), LostAt(1, 1000), Working(2)}, 1010 * kMs);
  CHECK((same.lines.empty() && same.restart.empty() && !same.epoch));
  CHECK(recovery.Update({Working(0, 1), Working(1), Working(2, 1)}, 1200 * kMs).lines.empty());
  CHECK(
      recovery.Update({Working(0, 1), Working(1, 1), Working(2, 1)}, 1410 * kMs).lines ==
      Lines{"all 3 ranks go on, 0.41 s after the loss"});
  REQUIRE(recovery.losses().size() == 1);
  CHECK(recovery.losses()[0].recovered_ns - recovery.losses()[0].lost_ns == 410 * kMs);
}

TEST_CASE("ranks that give up because of the lost rank are started again without further cost") {
  Recovery recovery(1, kHosts);
  recovery.Update({Working(0), LostAt(1, 1000), Working(2)}, 1001 * kMs);
  const auto more =
      recovery.Update({EndedAt(0, 76, 1002), LostAt(1, 1000), EndedAt(2, 76, 1002)}, 1003 * kMs);
  CHECK(more.restart == std::vector<int>{0, 2});
  CHECK(more.epoch->number == 2);
  CHECK_FALSE(more.end);
  CHECK(recovery.used() == 1);
}

TEST_CASE("the job ends with the reason of a loss for which no restart is left") {
  Recovery recovery(1, kHosts);
  recovery.Update({LostAt(0, 1000), Working(1), Working(2)}, 1001 * kMs);
  recovery.Update({Working(0, 1), Working(1, 1), Working(2, 1)}, 1500 * kMs);
  const auto orders = recovery.Update({Working(0, 1), Working(1, 1), LostAt(2, 2000)}, 2001 * kMs);
  REQUIRE(orders.end);
  CHECK(orders.end->exit_code == 128 + SIGKILL);
  CHECK(
      orders.end->message ==
      "rank 2 on h2 was killed by SIGKILL; --restarts 1 allows no further restart");
  CHECK(orders.restart.empty());
}

TEST_CASE("no rank is started again after an end that would only happen again") {
  const int code = GENERATE(2, 66, 126, 127);
  Recovery recovery(9, kHosts);
  const auto orders = recovery.Update({EndedAt(0, code, 10), Working(1), Working(2)}, 11 * kMs);
  REQUIRE(orders.end);
  CHECK(orders.end->exit_code == code);
  CHECK(orders.restart.empty());
}

TEST_CASE("an error that all ranks have agreed on before Shutdown ends the job") {
  Recovery recovery(9, kHosts);
  const auto orders = recovery.Update({EndedAt(0, 65, 10, true), Working(1), Working(2)}, 11 * kMs);
  REQUIRE(orders.end);
  CHECK(orders.end->exit_code == 65);
}

TEST_CASE("the job ends well when all ranks have done their work") {
  Recovery recovery(9, kHosts);
  const auto end =
      recovery.Update({EndedAt(0, 0, 5, true), EndedAt(1, 0, 6, true), EndedAt(2, 0, 7, true)}, kMs)
          .end;
  REQUIRE(end);
  CHECK(end->exit_code == 0);
}

TEST_CASE("a rank that is lost after the work was done is not needed, except rank 0") {
  const int lost = GENERATE(0, 2);
  Recovery recovery(9, kHosts);
  std::vector<ExitRecord> records = {EndedAt(0, 0, 5, true), EndedAt(1, 0, 6, true), Working(2)};
  if (lost == 0) std::swap(records[0].rank, records[2].rank);
  recovery.Update(records, 8 * kMs);
  records[2] = LostAt(lost, 9);
  const auto orders = recovery.Update(records, 10 * kMs);
  REQUIRE(orders.end);
  CHECK(orders.end->exit_code == (lost == 0 ? 128 + SIGKILL : 0));
  if (lost == 2)
    CHECK(
        orders.lines == Lines{"rank 2 on h2 was killed by SIGKILL; all ranks had done their work"});
}

TEST_CASE("ranks that wait for one that has done its work end the job well") {
  Recovery recovery(9, kHosts);
  recovery.Update({Working(0), LostAt(1, 1000), Working(2)}, 1001 * kMs);
  ExitRecord waiting = Working(2);
  const auto update = [&](int64_t at_ms) {
    return recovery.Update({EndedAt(0, 0, 1002, true), Working(1), waiting}, at_ms * kMs).end;
  };
  CHECK_FALSE(update(1500));  // perhaps rank 2 writes results
  waiting.state.init_ns = 1600 * kMs;
  ExitRecord starting = Working(1);
  starting.state = {.init_ns = 1600 * kMs};
  const auto end = recovery.Update({EndedAt(0, 0, 1002, true), starting, waiting}, 1700 * kMs).end;
  REQUIRE(end);
  CHECK(end->exit_code == 0);
}

TEST_CASE("a rank that does not start again ends the job") {
  Recovery recovery(9, kHosts, std::chrono::seconds(3));
  const std::vector<ExitRecord> records = {Working(0), Working(1), LostAt(2, 1000)};
  CHECK_FALSE(recovery.Update(records, 1001 * kMs).end);
  CHECK_FALSE(recovery.Update(records, 4000 * kMs).end);
  const auto end = recovery.Update(records, 4002 * kMs).end;
  REQUIRE(end);
  CHECK(end->exit_code == 69);
  CHECK(end->message == "rank 2 on h2 had not started again after 3 s (--start-timeout)");
}

TEST_CASE("a rank that exits with code 0 without Shutdown ends a job that waits for it") {
  Recovery recovery(9, kHosts);
  const std::vector<ExitRecord> records = {Working(0), EndedAt(1, 0, 1000), Working(2)};
  CHECK_FALSE(recovery.Update(records, 1001 * kMs).end);
  const auto end = recovery.Update(records, 3500 * kMs).end;
  REQUIRE(end);
  CHECK(end->exit_code == 76);
  CHECK(end->message == "rank 1 on h1 exited with code 0 without Shutdown; that ended the job");
}

TEST_CASE(
    "a rank that ends again without having joined is started after longer and longer pauses") {
  CHECK(Recovery::Pause(0) == std::chrono::milliseconds(0));
  CHECK(Recovery::Pause(1) == std::chrono::milliseconds(250));
  CHECK(Recovery::Pause(2) == std::chrono::milliseconds(500));
  CHECK(Recovery::Pause(50) == std::chrono::seconds(30));
  Recovery recovery(9, kHosts);
  CHECK(recovery.Update({Working(0), LostAt(1, 1000), Working(2)}, 1000 * kMs).restart.size() == 1);
  ExitRecord starting = Working(1);
  starting.state.joined = false;
  starting.start_ns = 1050 * kMs;
  recovery.Update({Working(0), starting, Working(2)}, 1050 * kMs);
  ExitRecord again = LostAt(1, 1100);
  again.state.joined = false;
  again.start_ns = starting.start_ns;
  CHECK(recovery.Update({Working(0), again, Working(2)}, 1100 * kMs).restart.empty());
  CHECK(recovery.Update({Working(0), again, Working(2)}, 1340 * kMs).restart.empty());
  CHECK(
      recovery.Update({Working(0), again, Working(2)}, 1351 * kMs).restart == std::vector<int>{1});
}

// ---- Random schedules ---------------------------------------------------------------------------

// A rank as it is. The records that Recovery sees follow a little later.
struct Rank {
  enum class Phase { kStarting, kInInit, kWorks, kDead, kDone } phase = Phase::kStarting;
  int epoch = 0;        // that it has joined, or waits to join
  int64_t next_ms = 0;  // of its next action
  ExitRecord record = {};
};

class Simulation {
 public:
  Simulation(unsigned seed, int restarts)
      : random_(seed), size_(Draw(1, 5)), restarts_(restarts), recovery_(restarts, {{"h", size_}}) {
    faults_end_ms_ = Draw(0, 4000);
    ranks_.resize(static_cast<size_t>(size_));
    for (int rank = 0; rank < size_; ++rank) Start(rank, false);
  }

  // Returns the broken promise, or "".
  std::string Run() {
    for (; now_ms_ < 200'000; now_ms_ += Draw(1, 20)) {
      Fault();
      for (int rank = 0; rank < size_; ++rank) Act(rank);
      Meet();
      Report();
      if (const std::string broken = Obey(); !broken.empty() || over_) return broken;
    }
    return Text("the job has not ended; epoch ", epoch_);
  }

 private:
  int Draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  void Start(int rank, bool again) {
    Rank& it = ranks_[static_cast<size_t>(rank)];
    it = {.next_ms = now_ms_ + Draw(1, 300)};
    it.record = {.rank = rank, .pid = ++last_pid_, .start_ns = now_ms_ * kMs + 1};
    if (again) ++starts_;
  }

  // Kills any process in any phase, sometimes two at once. Rarely kills within a restart's start.
  void Fault() {
    if (now_ms_ > faults_end_ms_) return;
    while (Draw(0, 40) == 0) {
      Rank& it = ranks_[static_cast<size_t>(Draw(0, size_ - 1))];
      if (it.phase == Rank::Phase::kDead || it.phase == Rank::Phase::kDone) continue;
      it.phase = Rank::Phase::kDead;
      it.record.end = Draw(0, 3) == 0 ? RankEnd::kExited : RankEnd::kSignaled;
      it.record.value = it.record.end == RankEnd::kExited ? 76 : SIGKILL;
      it.record.time_ns = now_ms_ * kMs + 1;
      ++deaths_;
    }
  }

  void Act(int rank) {
    Rank& it = ranks_[static_cast<size_t>(rank)];
    const bool is_due = now_ms_ >= it.next_ms;
    if (it.phase == Rank::Phase::kStarting && is_due) {
      it.phase = Rank::Phase::kInInit;
      it.epoch = epoch_;
    }
    if (it.phase == Rank::Phase::kInInit) it.epoch = epoch_;
    // A rank that works sees a new epoch at its next operation.
    if (it.phase == Rank::Phase::kWorks && it.epoch != epoch_ && Draw(0, 3) == 0)
      it.phase = Rank::Phase::kInInit;
    it.record.state.init_ns = it.phase == Rank::Phase::kInInit ? now_ms_ * kMs + 1 : 0;
  }

  // Ranks leave Init, or the job, together.
  void Meet() {
    const auto all = [&](Rank::Phase phase) {
      return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
        return rank.phase == phase && rank.epoch == epoch_;
      });
    };
    if (all(Rank::Phase::kInInit)) {
      for (Rank& rank : ranks_) {
        rank.phase = Rank::Phase::kWorks;
        rank.record.state = {.joined = true, .epoch = rank.epoch};
      }
      works_until_ms_ = now_ms_ + Draw(100, 3000);
    } else if (all(Rank::Phase::kWorks) && now_ms_ >= works_until_ms_ && now_ms_ > faults_end_ms_) {
      for (Rank& rank : ranks_) {
        rank.phase = Rank::Phase::kDone;
        rank.record.end = RankEnd::kExited;
        rank.record.time_ns = now_ms_ * kMs + 1;
        rank.record.in_order = true;
      }
    }
  }

  // The agents report some ranks now and the others later. A rank that was killed and started again
  // in between has reported its end first.
  void Report() {
    for (const Rank& rank : ranks_) {
      if (Draw(0, 2) == 0) continue;
      const auto known = std::find_if(seen_.begin(), seen_.end(), [&](const ExitRecord& record) {
        return record.rank == rank.record.rank;
      });
      if (known == seen_.end())
        seen_.push_back(rank.record);
      else
        *known = rank.record;
    }
  }

  std::string Obey() {
    const Recovery::Orders orders = recovery_.Update(seen_, now_ms_ * kMs + 2);
    if (orders.epoch) {
      if (orders.epoch->number != epoch_ + 1)
        return Text("epoch ", orders.epoch->number, " follows ", epoch_);
      epoch_ = orders.epoch->number;
    }
    for (const int rank : orders.restart) {
      if (ranks_[static_cast<size_t>(rank)].phase != Rank::Phase::kDead)
        return Text("rank ", rank, " is started again while it runs");
      Start(rank, true);
    }
    if (recovery_.used() > restarts_ && !orders.end) return "more restarts than allowed";
    if (recovery_.used() > deaths_) return "more restarts than deaths";
    if (!orders.end) return "";
    over_ = true;
    const bool done = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return rank.phase == Rank::Phase::kDone;
    });
    if (orders.end->exit_code == 0 && !done) return "the job ended before all ranks had";
    if (orders.end->exit_code != 0 && recovery_.used() <= restarts_)
      return "the job failed with restarts left: " + orders.end->message;
    if (orders.end->exit_code == 0 && starts_ != deaths_)
      return Text(deaths_, " deaths, but ", starts_, " starts");
    for (const Loss& loss : recovery_.losses())
      if (orders.end->exit_code == 0 && loss.recovered_ns <= loss.lost_ns)
        return "a loss has no end";
    return "";
  }

  std::mt19937 random_;
  int size_, restarts_;
  Recovery recovery_;
  std::vector<Rank> ranks_;
  std::vector<ExitRecord> seen_;
  int64_t now_ms_ = 0, faults_end_ms_ = 0, works_until_ms_ = 0;
  int epoch_ = 0, deaths_ = 0, starts_ = 0;
  pid_t last_pid_ = 100;
  bool over_ = false;
};

TEST_CASE("10,000 random schedules of losses end with all work done, or without restarts left") {
  for (unsigned seed = 0; seed < 10'000; ++seed) {
    const int restarts = seed % 4 == 0 ? static_cast<int>(seed % 7) : 1'000'000;
    const std::string broken = Simulation(seed, restarts).Run();
    CAPTURE(seed);
    REQUIRE(broken == "");
  }
}

}  // namespace
}  // namespace dtrun::launcher
